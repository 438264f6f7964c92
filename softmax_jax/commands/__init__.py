"""The command lines, one module each; `softmax-jax NAME` and a file beside the package run them."""
