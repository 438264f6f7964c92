"""Ten seeds for 200,000 steps without a penalty, at a rate of one cycle: the furthest reach from sixteen items.

Command:  python train.py frontier
Cost:     93 minutes on 2 CPU cores with little other work, at 36 steps a second (2026-11-22).
Score:    100.0 % at 16 items under softmax, 99.4 % at 1024, 72.5 % at 16384, 34.0 % at 65536.
"""

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config

CONFIG = Config(
    MaxRetrieval(min_items=16),
    steps=200_000,
    seeds=10,
    l2=0.0,
    learning_rate=0.003,
    schedule="cosine_onecycle_schedule",
)
