"""Writes parameters as the published recreation of max retrieval has them: the inverse of `published.from_bytes`."""

import flax.serialization
import jax
import numpy as np

from softmax_jax.experiment.tasks.published import ATTENTION, DENSE, PROJECTIONS


def to_bytes(parameters):
    """Returns the msgpack bytes of our parameters, without a seed axis."""
    width = parameters["item_in"]["kernel"].shape[1]
    shapes = {"kernel": (width, 1, width), "bias": (1, width)}
    out = {"kernel": (1, width, width), "bias": (width,)}
    tree = {theirs: jax.tree.map(np.asarray, parameters[ours]) for ours, theirs in DENSE.items()}
    tree[ATTENTION] = {
        name: {
            leaf: np.asarray(array).reshape((out if name == "out" else shapes)[leaf])
            for leaf, array in parameters[f"attention_{name}"].items()
        }
        for name in PROJECTIONS
    }
    return flax.serialization.msgpack_serialize(tree)
