"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

from softmax_jax.commands.shootout import main

if __name__ == "__main__":
    main()
