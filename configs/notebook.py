"""The recipe of a published recreation: one seed, 5,000 steps, a new batch every 10 steps.

Command:  python train.py notebook
"""

from softmax_jax.config import Config

CONFIG = Config(steps=5_000, steps_per_batch=10)
