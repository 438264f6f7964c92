"""Ten seeds for 200,000 steps without a penalty, at a rate of one cycle: the furthest reach from sixteen items.

Command:  python train.py frontier
"""

from softmax_jax.config import Config

CONFIG = Config(steps=200_000, seeds=10, min_items=16, l2=0.0, learning_rate=0.003, schedule="cosine_onecycle_schedule")
