"""Tasks: the data and the model of each, side by side."""
