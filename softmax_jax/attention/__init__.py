"""Attention with any normalizer: on arrays, and inside the layers of Flax."""
