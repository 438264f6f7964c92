"""A transformer of one layer averages all items at a trigger and answers 0 without it: five seeds of 1,500 steps.

Command:  python train.py trigger
"""

from softmax_jax.experiment.tasks.trigger import Trigger
from softmax_jax.experiment.training.config import Config

CONFIG = Config(Trigger(), steps=1_500, seeds=5, l2=0.0, learning_rate=0.003, chunk=100)
