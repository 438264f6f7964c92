"""Pure functions that turn logits into weights. Nothing here imports Flax."""
