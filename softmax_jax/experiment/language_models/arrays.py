"""Makes parameters of the arrays of a model's files, which must have known names and shapes."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softmax_jax.experiment.language_models.configuration import Description
from softmax_jax.experiment.language_models.decoder import Parameters
from softmax_jax.experiment.language_models.keys import shown
from softmax_jax.refusal import Refusal

MODEL_ARRAYS = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "scores": ("output.weight", "lm_head.weight"),
}
LAYER_ARRAYS = {
    "attention_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "query": ("attn_q.weight", "self_attn.q_proj.weight"),
    "key": ("attn_k.weight", "self_attn.k_proj.weight"),
    "value": ("attn_v.weight", "self_attn.v_proj.weight"),
    "query_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "key_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "value_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "out": ("attn_output.weight", "self_attn.o_proj.weight"),
    "perceptron_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "down": ("ffn_down.weight", "mlp.down_proj.weight"),
}
"""The arrays of the model and of a layer, by their names in the decoder: those in GGUF and in safetensors."""
HARMLESS_ARRAYS = {
    "*.rotary_emb.inv_freq": "the rates of rotary positions in old checkpoints, which are computed from rope_theta",
    "blk.*.attn_rot_embd.weight": "the same in GGUF, which llama.cpp skips",
}
"""Arrays that are not read, and why."""


class Stored(NamedTuple):
    """An array of a file that is not read yet."""

    shape: tuple[int, ...]
    kind: str
    """The name of its type."""
    path: Path
    """The file that holds it."""
    read: Callable[[], np.ndarray]


def count_rows(arrays: Mapping[str, Stored], name: str, path: Path) -> int:
    """Returns the number of rows of a matrix. Raises Refusal if it is missing or no matrix."""
    if name not in arrays:
        raise _lacks(path, name)
    if len(arrays[name].shape) != 2:
        raise _misshapen(arrays[name], name, "two axes")
    return arrays[name].shape[0]


def _lacks(path: Path, name: str) -> Refusal:
    return Refusal(f"{path} has no array {name}: it is no llama-like model, or not whole; download all of it")


def read_parameters(
    arrays: Mapping[str, Stored], description: Description, prefix: str, place: int, path: Path
) -> Parameters:
    """Returns the arrays of the model, and those of all layers, stacked.

    Every array of the file is one of these, in the shape that the others and the configuration give, or is harmless.
    All that headers show is checked before the first array is read.

    Arguments:
        arrays: Those of the files, by their names.
        description: The configuration.
        prefix: How the names of the arrays of layers start.
        place: 0 for the names of GGUF, 1 for those of safetensors.
        path: The file or directory, for refusals.

    Raises:
        Refusal: For an array that is missing, unknown, of another shape or type, or not finite.
    """
    _check_layers(arrays, description.layers, prefix, path)
    names = {key: f"{prefix}.{{}}.{stored[place]}" for key, stored in LAYER_ARRAYS.items()}
    names = {key: name for key, name in names.items() if _is_used(key, name, arrays, description)}
    model_names = {key: stored[place] for key, stored in MODEL_ARRAYS.items()}
    if model_names["scores"] not in arrays:
        if description.tied is False:
            rule = f"which needs the array {model_names['scores']}, and {path.name} has none"
            raise Refusal(f"{path}: tie_word_embeddings is not true, {rule}: download all of it, or set it to true")
        del model_names["scores"]
    shapes = _shapes(arrays, description, names, model_names, path)
    used = {name: shapes[key] for key, name in model_names.items()}
    used |= {name.format(layer): shapes[key] for key, name in names.items() for layer in range(description.layers)}
    _check_arrays(arrays, used, path)
    parameters = {key: jnp.asarray(_finite(arrays[name], name)) for key, name in model_names.items()}
    if description.tied and "scores" in parameters:
        _drop_tied(parameters, model_names["scores"], path)
    layers = {key: _stacked(arrays, name, description.layers, shapes[key]) for key, name in names.items()}
    return parameters | {"layers": layers}


def _check_layers(arrays: Mapping[str, Stored], layers: int, prefix: str, path: Path) -> None:
    """Raises Refusal unless the file has the arrays of exactly these layers."""
    numbers = {int(match[1]) for name in arrays if (match := re.match(rf"{re.escape(prefix)}\.(\d{{1,9}})\.", name))}
    if len(numbers) != layers or max(numbers) != layers - 1:
        raise Refusal(
            f"{path} has arrays of {len(numbers)} layers and tells of {layers}: it is not whole or not of this "
            "configuration; download all of it"
        )


def _is_used(key: str, name: str, arrays: Mapping[str, Stored], description: Description) -> bool:
    """Returns whether the model has an array: all but biases, which it has in every layer or in none.

    transformers starts biases that a Qwen2 lacks at zero.
    """
    in_file = any(name.format(layer) in arrays for layer in range(description.layers))
    return not key.endswith("_bias") or (description.biases and in_file)


def _shapes(
    arrays: Mapping[str, Stored],
    description: Description,
    names: dict[str, str],
    model_names: dict[str, str],
    path: Path,
) -> dict[str, tuple[int, ...]]:
    """Returns the shape that each array must have, from the embedding, a gate, and the configuration."""
    vocabulary, inner, rows = (
        count_rows(arrays, name, path)
        for name in (model_names["embed"], names["gate"].format(0), names["query"].format(0))
    )
    width = arrays[model_names["embed"]].shape[1]
    for axis, size in (("vocabulary", vocabulary), ("width", width), ("inner", inner)):
        key, described_size = description.axes.get(axis, ("", size))
        if described_size != size:
            raise Refusal(
                f"{path}: {key} is {described_size}, and its arrays have {size}: it is of another model; "
                "download it again"
            )
    key_rows = rows // description.sizes.heads * description.sizes.key_heads
    return {
        "embed": (vocabulary, width),
        "scores": (vocabulary, width),
        **dict.fromkeys(("norm", "attention_norm", "perceptron_norm"), (width,)),
        "query": (rows, width),
        **dict.fromkeys(("key", "value"), (key_rows, width)),
        "query_bias": (rows,),
        **dict.fromkeys(("key_bias", "value_bias"), (key_rows,)),
        "out": (width, rows),
        **dict.fromkeys(("gate", "up"), (inner, width)),
        "down": (width, inner),
    }


def _misshapen(array: Stored, name: str, expected: object) -> Refusal:
    return Refusal(f"{array.path}: the array {shown(name)} has the shape {array.shape}: it must have {expected}")


def _check_arrays(arrays: Mapping[str, Stored], used: dict[str, tuple[int, ...]], path: Path) -> None:
    """Raises Refusal unless the file has the arrays that are used, in their shapes, and no other."""
    for name, shape in used.items():
        if name not in arrays:
            raise _lacks(path, name)
        if arrays[name].shape != shape:
            raise _misshapen(arrays[name], name, shape)
    for name, array in arrays.items():
        if name not in used and not any(fnmatch.fnmatchcase(name, harmless) for harmless in HARMLESS_ARRAYS):
            raise Refusal(
                f"{array.path} holds the array {shown(name)}, of which this decoder knows no use in such a model: "
                "choose another model"
            )


def _finite(array: Stored, name: str) -> Float[np.ndarray, "..."]:
    """Reads an array, in float32. Raises Refusal for infinities and NaN."""
    with np.errstate(over="ignore"):  # which are refused here
        values = array.read().astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise Refusal(
            f"{array.path}: the array {name} has entries that are not finite: it is damaged; download it again"
        )
    return values


def _stacked(arrays: Mapping[str, Stored], name: str, layers: int, shape: tuple[int, ...]) -> Array:
    stacked = np.empty((layers, *shape), np.float32)
    for layer in range(layers):
        stacked[layer] = _finite(arrays[name.format(layer)], name.format(layer))
    return jnp.asarray(stacked)


def _drop_tied(parameters: Parameters, name: str, path: Path) -> None:
    """Drops scores that equal the embedding. Raises Refusal for others: transformers 4 ignores them, 5 takes them."""
    if not np.array_equal(parameters.pop("scores"), parameters["embed"]):
        raise Refusal(
            f"{path}: tie_word_embeddings is true, and {name} is another array than the embedding: set "
            "it to false, or leave the array out"
        )
