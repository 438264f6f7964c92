"""Refits the adaptive temperature, β as a polynomial of a row's entropy, to trained max-retrieval models."""

from softmax_jax.commands.fit import main

if __name__ == "__main__":
    main()
