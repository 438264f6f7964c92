"""The frontier's recipe on near ties: of 64 draws of each set, the one whose two largest items are nearest.

Command:  python train.py near_ties
"""

from softmax_jax.config import Config

CONFIG = Config(
    steps=200_000,
    seeds=10,
    sets=32,
    min_items=16,
    nearest_of=64,
    l2=0.0,
    learning_rate=0.003,
    schedule="cosine_onecycle_schedule",
)
