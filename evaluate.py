"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

import studies  # noqa: F401  names tasks and presets of its own
from softmax_jax.experiment.commands.evaluate import main

if __name__ == "__main__":
    main()
