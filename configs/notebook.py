"""The recipe of a published recreation: one seed, 5,000 steps, a new batch every 10 steps.

Command:  python train.py notebook
Cost:     36 seconds on 2 CPU cores that had other work besides (2026-11-21).
Score:    93.4 % at 16 items under softmax, 19.9 % at 1024, 15.0 % at 16384.
"""

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config

CONFIG = Config(MaxRetrieval(steps_per_batch=10), steps=5_000)
