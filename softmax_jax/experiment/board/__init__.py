"""The board: one protocol of small tasks, the cells that it measures, and the order of the methods."""
