"""CLRS-Text on a decoder of 102 million parameters: predicted 0.80 exaflop, never trained.

The matrix products of its 20,000 steps are 4 × 10¹⁷ multiply-adds by `benchmarks.costs`: 66 minutes at a
sustained 200 teraflop per second, which 8 devices share.

Command:  python train.py clrs_text_100m
"""

from softmax_jax.configs.clrs_text import CONFIG as SMALL
from softmax_jax.training.config import changed

CONFIG = changed(SMALL, hidden=768, heads=12, layers=14, sets=32, steps=20_000, learning_rate=0.001)
