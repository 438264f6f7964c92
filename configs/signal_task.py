"""One small transformer on the hidden signal: five seeds of 375 steps.

Command:  python train.py signal
Cost:     half a minute on 2 CPU cores that had other work besides (2026-11-22).
Score:    97.6 % at 32 positions under softmax, 61.7 % at 512.
"""

from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.training.config import Config

CONFIG = Config(Signal(), steps=375, seeds=5, l2=0.0, learning_rate=0.0003, chunk=25)
