"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

from softmax_jax.commands.evaluate import main

if __name__ == "__main__":
    main()
