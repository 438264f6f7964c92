"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

import studies  # noqa: F401  names tasks and presets of its own
from softmax_jax.experiment.commands.shootout import main

if __name__ == "__main__":
    main()
