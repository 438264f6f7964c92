"""Trains the model of a task: python train.py PRESET [options]."""

import studies  # noqa: F401  names tasks and presets of its own
from softmax_jax.experiment.commands.train import main

if __name__ == "__main__":
    main()
