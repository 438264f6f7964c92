"""Prints the table of every registered method: python -m softmax_jax.normalizers [--markdown]."""

from softmax_jax.report.catalogue import main

if __name__ == "__main__":
    main()
