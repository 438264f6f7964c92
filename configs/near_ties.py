"""The frontier's recipe on near ties: of 64 draws of each set, the one whose two largest items are nearest.

Command:  python train.py near_ties
"""

import dataclasses

from configs import frontier

CONFIG = dataclasses.replace(frontier.CONFIG, sets=32, nearest_of=64)
