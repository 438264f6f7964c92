"""Ten seeds for 100,000 steps: the recipe closest to the published softmax row.

Command:  python train.py paper
"""

from softmax_jax.config import Config

CONFIG = Config(seeds=10)
