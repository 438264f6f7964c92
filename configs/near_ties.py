"""The frontier's recipe on near ties: of 64 draws of each set, the one whose two largest items are nearest.

Command:  python train.py near_ties
Cost:     about 40 minutes on 2 quiet CPU cores, at 85 steps a second (2026-11-22).
Score:    100.0 % at 16 items under softmax, 99.9 % at 1024, 96.2 % at 16384, 76.6 % at 65536.
"""

from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.training.config import changed

CONFIG = changed(load_preset("frontier"), batch=32, nearest_of=64)
