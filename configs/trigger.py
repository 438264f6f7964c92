"""A transformer of one layer averages all items at a trigger and answers 0 without it: five seeds of 2,000 steps.

Command:  python train.py trigger
"""

from softmax_jax.experiment.tasks.trigger import Trigger
from softmax_jax.experiment.training.config import Config

TASK = Trigger(length=16, hidden=32, layers=1)
CONFIG = Config(TASK, steps=2_000, seeds=5, l2=0.0, learning_rate=0.003, chunk=100)
