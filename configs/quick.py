"""One seed for 12,000 steps: a model to try things on.

Command:  python train.py quick
Cost:     50 seconds on 2 CPU cores, of which it uses one (2026-11-21).
Score:    99.0 % at 16 items under softmax, 32.0 % at 1024, 13.7 % at 16384.
"""

from softmax_jax.experiment.training.config import Config

CONFIG = Config(steps=12_000)
