"""One seed for 20,000 steps: a model to try things on.

Command:  python train.py quick
"""

from softmax_jax.config import Config

CONFIG = Config(steps=20_000)
