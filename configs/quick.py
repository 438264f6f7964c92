"""One seed for 12,000 steps: a model to try things on.

Command:  python train.py quick
Cost:     QCOST
Score:    QSCORE
"""

from softmax_jax.config import Config

CONFIG = Config(steps=12_000)
