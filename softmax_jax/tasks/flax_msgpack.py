"""Parameters of the max-retrieval model as the Flax msgpack bytes of a published recreation, in and out.

That model is a Flax Linen one: six Dense layers, and `MultiHeadDotProductAttention` with one head, whose
kernels carry the head as an axis of size 1.
"""

from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np

from softmax_jax.tasks.max_retrieval import CLASSES, FEATURES

ATTENTION = "MultiHeadDotProductAttention_0"
DENSE = {
    "item_in": "Dense_0",
    "item_out": "Dense_1",
    "query_in": "Dense_2",
    "query_out": "Dense_3",
    "read_in": "Dense_4",
    "read_out": "Dense_5",
}
PROJECTIONS = ("query", "key", "value", "out")


def from_bytes(data: bytes) -> dict[str, Any]:
    """Parameters of our model, as nested dicts, from the msgpack bytes, with or without a `params` level.

    Raises ValueError, in one line, for bytes that are no msgpack and for a tree of another model.
    """
    try:
        tree = flax.serialization.msgpack_restore(data)
    except Exception as error:  # msgpack raises several types for damaged bytes
        raise ValueError(f"not Flax msgpack bytes ({type(error).__name__}): give a file of model parameters") from error
    tree = tree.get("params", tree) if isinstance(tree, dict) else {}
    try:
        width = tree["Dense_0"]["kernel"].shape[1]
        parameters = {ours: dict(tree[theirs]) for ours, theirs in DENSE.items()}
        for name in PROJECTIONS:
            layer = tree[ATTENTION][name]
            parameters[f"attention_{name}"] = {
                "kernel": layer["kernel"].reshape(width, width),
                "bias": layer["bias"].reshape(width),
            }
    except (KeyError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"not the parameters of the max-retrieval model: {error!r} while reading the tree") from None
    _check_shapes(parameters, width)
    return jax.tree.map(jnp.asarray, parameters)


def to_bytes(parameters: dict[str, Any]) -> bytes:
    """The msgpack bytes of our parameters, without a seed axis: the inverse of `from_bytes`."""
    width = parameters["item_in"]["kernel"].shape[1]
    shapes = {"kernel": (width, 1, width), "bias": (1, width)}
    tree: dict[str, Any] = {theirs: jax.tree.map(np.asarray, parameters[ours]) for ours, theirs in DENSE.items()}
    tree[ATTENTION] = {
        name: {leaf: np.asarray(parameters[f"attention_{name}"][leaf]).reshape(shape) for leaf, shape in shapes.items()}
        for name in PROJECTIONS[:-1]
    }
    out = parameters["attention_out"]
    tree[ATTENTION]["out"] = {
        "kernel": np.asarray(out["kernel"]).reshape(1, width, width),
        "bias": np.asarray(out["bias"]),
    }
    return flax.serialization.msgpack_serialize(tree)


def _check_shapes(parameters: dict[str, Any], width: int) -> None:
    inputs = {"item_in": FEATURES, "query_in": 1}
    for name, layer in parameters.items():
        columns = CLASSES if name == "read_out" else width
        expected = {"kernel": (inputs.get(name, width), columns), "bias": (columns,)}
        found = {leaf: np.shape(array) for leaf, array in layer.items()}
        if found != expected:
            raise ValueError(
                f"layer {DENSE.get(name, name)} has shapes {found}; the max-retrieval model has {expected}"
            )
