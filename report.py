"""Shows what a trained model's attention does as sets grow: one page that opens anywhere, with its charts and data."""

import studies  # noqa: F401  names tasks and presets of its own
from softmax_jax.experiment.commands.report import main

if __name__ == "__main__":
    main()
