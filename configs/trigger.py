"""A transformer of one layer averages all items at a trigger and answers 0 without it: five seeds of 1,500 steps.

Command:  python train.py trigger
Cost:     52 s of processor time for two of the seeds, on 2 CPU cores that had other work besides (2026-11-28).
Score:    100.0 % at 16 items under softmax, 96.1 % at 64, by 64 sets for each of those two seeds; hardmax in its place
          answers 51 % and 50 %, as answering 0 always does.
"""

from softmax_jax.experiment.tasks.trigger import Trigger
from softmax_jax.experiment.training.config import Config

CONFIG = Config(Trigger(), steps=1_500, seeds=5, l2=0.0, learning_rate=0.003, chunk=100)
