"""A transformer of one layer names the class that no item has: five seeds of 600 steps.

Command:  python train.py set_complement
"""

from softmax_jax.experiment.tasks.set_complement import SetComplement
from softmax_jax.experiment.training.config import Config

CONFIG = Config(SetComplement(), steps=600, seeds=5, l2=0.0, learning_rate=0.003, chunk=100)
