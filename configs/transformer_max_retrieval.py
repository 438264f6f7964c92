"""Max retrieval by a small transformer instead of one attention head: five seeds of 3,000 steps.

Command:  python train.py transformer_max_retrieval
Cost:     about 20 minutes on 2 CPU cores that had other work besides, at 2.5 steps a second (2026-11-22).
Score:    not measured at this size; 96 % of 8 items by one of half the width and one layer, after 400 steps.
"""

from softmax_jax.experiment.tasks.retrieval import TransformerMaxRetrieval
from softmax_jax.experiment.training.config import Config

CONFIG = Config(TransformerMaxRetrieval(), steps=3_000, seeds=5, l2=0.0, learning_rate=0.001, chunk=100)
