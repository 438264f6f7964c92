"""Trains the model of a task: python train.py PRESET [options]."""

from softmax_jax.commands.train import main

if __name__ == "__main__":
    main()
