"""Refits the adaptive temperature, β as a polynomial of a row's entropy, to trained max-retrieval models."""

import studies  # noqa: F401  names tasks and presets of its own
from softmax_jax.experiment.commands.fit import main

if __name__ == "__main__":
    main()
