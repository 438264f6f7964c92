"""Pretrained language models: load one, put any normalizer into its heads, measure what the heads do."""
