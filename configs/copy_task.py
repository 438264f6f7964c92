"""A small transformer names items by position: five seeds of 3,000 steps.

Command:  python train.py copy
Cost:     about 20 minutes on 2 CPU cores that had other work besides, at 2.5 steps a second (2026-11-22).
Score:    not measured at this size; 99 % of 8 items by one of half the width and one layer, after 400 steps.
"""

from softmax_jax.experiment.tasks.retrieval import Copy
from softmax_jax.experiment.training.config import Config

CONFIG = Config(Copy(), steps=3_000, seeds=5, l2=0.0, learning_rate=0.001, chunk=100)
