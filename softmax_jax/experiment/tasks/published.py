"""Reads the parameters of a published recreation of max retrieval, which are Flax msgpack bytes.

The model is one of Flax Linen: six Dense layers, and `MultiHeadDotProductAttention` with one head, whose kernels carry
the head as an axis of size 1.
"""

from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np

from softmax_jax.experiment.tasks.retrieval_model import CLASSES, FEATURES
from softmax_jax.refusal import Refusal

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
    """Returns the parameters of our model, as nested dicts, from msgpack bytes with or without a `params` level.

    Raises ValueError, in one line, for bytes that are no msgpack, for a tree of another model, and for numbers that
    are not finite.
    """
    try:
        tree = flax.serialization.msgpack_restore(data)
    except Exception as error:  # msgpack raises several types for damaged bytes
        raise Refusal(f"not Flax msgpack bytes ({type(error).__name__}): give a file of model parameters") from error
    tree = tree.get("params", tree) if isinstance(tree, dict) else {}
    try:
        width = tree["Dense_0"]["kernel"].shape[1]
        _check_tree(tree, width)
        parameters = {ours: dict(tree[theirs]) for ours, theirs in DENSE.items()}
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise Refusal(f"not the parameters of the max-retrieval model: {error!r} while reading the tree") from None
    for name in PROJECTIONS:
        layer = tree[ATTENTION][name]
        kernel, bias = layer["kernel"].reshape(width, width), layer["bias"].reshape(width)
        parameters[f"attention_{name}"] = {"kernel": kernel, "bias": bias}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), parameters)


def _check_tree(tree: dict[str, Any], width: int) -> None:
    """Raises ValueError unless the tree has the layers of the model, each with its shapes, and nothing else."""
    inputs, outputs = {"Dense_0": FEATURES, "Dense_2": 1}, {"Dense_5": CLASSES}
    expected: dict[str, dict[str, tuple[int, ...]]] = {}
    for name in DENSE.values():
        columns = outputs.get(name, width)
        expected[name] = {"kernel": (inputs.get(name, width), columns), "bias": (columns,)}
    for name in PROJECTIONS[:-1]:
        expected[f"{ATTENTION}/{name}"] = {"kernel": (width, 1, width), "bias": (1, width)}
    expected[f"{ATTENTION}/out"] = {"kernel": (1, width, width), "bias": (width,)}
    layers = {name: tree[name] for name in tree if name != ATTENTION}
    layers |= {f"{ATTENTION}/{name}": layer for name, layer in tree[ATTENTION].items()}
    for name in sorted(layers.keys() | expected.keys()):
        shapes = {leaf: np.shape(array) for leaf, array in layers[name].items()} if name in layers else "missing"
        required = expected.get(name, "no such layer")
        if shapes != required:
            raise Refusal(f"layer {name} is {shapes}; the max-retrieval model has {required}")
        for leaf, array in layers[name].items():
            with np.errstate(over="ignore"):
                finite = jnp.issubdtype(array.dtype, jnp.floating) and np.isfinite(array.astype(np.float32)).all()
            if not finite:
                raise Refusal(f"{name}/{leaf} is damaged: it must hold finite floating-point numbers")
