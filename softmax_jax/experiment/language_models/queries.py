"""Says where a checkpoint keeps its queries, and which models compute logits that are linear in them.

A temperature θ of a query head is a factor 1/θ on the rows of that head in the query projection: (q/θ)·k = (q·k)/θ.
RoPE is linear; keys and masks stay. It holds only for a model whose logits are q·k and nothing else, so a model is in
a table here or is refused.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from softmax_jax.experiment.language_models.keys import shown
from softmax_jax.experiment.language_models.known_keys import REFUSED
from softmax_jax.refusal import Refusal

NOT_QUERIES = -1
"""The head of features that are no queries."""


class Shape(NamedTuple):
    """The sizes of a model that say which features of a projection are queries."""

    layers: int
    heads: int
    size: int | None
    """Features of a head, where the configuration says so."""


HeadOf = Callable[[int, Shape], Int[np.ndarray, " features"]]
"""The head of each of so many features, or `NOT_QUERIES`."""


class Queries(NamedTuple):
    """The arrays of a model that make its queries."""

    names: str
    """A regular expression of their names, whose first group is the layer."""
    head_of: HeadOf
    axis: int = 0
    """The axis of the features."""
    by_layer: bool = False
    """Says whether the heads of a layer share the array, which then takes one θ."""
    offset: float = 0.0
    """What the model adds to the array before it multiplies by it."""

    def layer_of(self, name: str) -> int | None:
        """Returns the layer whose queries an array of this name makes; None for any other array."""
        match = re.fullmatch(self.names, name)
        return int(match[1]) if match else None


def own_rows(features: int, shape: Shape) -> Int[np.ndarray, " features"]:
    """Returns the heads of a projection of queries alone.

    >>> own_rows(4, Shape(1, 2, None)).tolist()
    [0, 0, 1, 1]
    """
    return np.repeat(np.arange(shape.heads), features // shape.heads)


def first_rows(features: int, shape: Shape) -> Int[np.ndarray, " features"]:
    """Returns the heads of a projection with the queries first, then keys and values, a third each unless told.

    >>> first_rows(12, Shape(1, 2, None)).tolist()
    [0, 0, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1]
    """
    queries = shape.heads * (shape.size or features // (3 * shape.heads))
    return np.pad(own_rows(queries, shape), (0, features - queries), constant_values=NOT_QUERIES)


def interleaved_rows(features: int, shape: Shape) -> Int[np.ndarray, " features"]:
    """Returns the heads of a projection with the queries, keys and values of the first head, then of the next.

    >>> interleaved_rows(12, Shape(1, 2, None)).tolist()
    [0, 0, -1, -1, -1, -1, 1, 1, -1, -1, -1, -1]
    """
    parts = np.full((shape.heads, 3, features // (3 * shape.heads)), NOT_QUERIES)
    parts[:, 0] = np.arange(shape.heads)[:, None]
    return parts.reshape(-1)


def shared_rows(features: int, shape: Shape) -> Int[np.ndarray, " features"]:
    """Returns the first head for the features of an array that all heads share."""
    return np.zeros(features, int)


PLAIN = Queries(r"model\.layers\.(\d+)\.self_attn\.q_proj\.(?:weight|bias)", own_rows)
NORMED = Queries(r"model\.layers\.(\d+)\.self_attn\.q_norm\.weight", shared_rows, by_layer=True)
ARCHITECTURES = {
    **dict.fromkeys(
        ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "SmolLM3", "Gemma", "Phi", "StableLm", "Olmo"), PLAIN
    ),
    "OPT": Queries(r"(?:model\.)?decoder\.layers\.(\d+)\.self_attn\.q_proj\.(?:weight|bias)", own_rows),
    "Phi3": Queries(r"model\.layers\.(\d+)\.self_attn\.qkv_proj\.weight", first_rows),
    "GPT2": Queries(r"(?:transformer\.)?h\.(\d+)\.attn\.c_attn\.(?:weight|bias)", first_rows, axis=-1),
    "GPTNeoX": Queries(r"gpt_neox\.layers\.(\d+)\.attention\.query_key_value\.(?:weight|bias)", interleaved_rows),
    "Olmo2": Queries(r"model\.layers\.(\d+)\.self_attn\.q_norm\.weight", own_rows),
    "Qwen3": NORMED,
    "Qwen3Moe": NORMED,
    "Gemma3": NORMED._replace(offset=1.0),
}
"""The queries of the models that config.json calls so, followed by ForCausalLM or, for GPT-2, LMHeadModel.

GPT-2 stores inputs × features. OLMo 2 divides all queries by their root mean square and gives each feature of each head
a weight of its own; Qwen3 and Gemma 3 have a weight for each feature that all heads of a layer share, Gemma's less one.
"""
IN_GGUF = {
    **dict.fromkeys(("llama", "qwen2"), Queries(r"blk\.(\d+)\.attn_q\.(?:weight|bias)", own_rows)),
    "qwen3": Queries(r"blk\.(\d+)\.attn_q_norm\.weight", shared_rows, by_layer=True),
}
"""The queries of the models that general.architecture of GGUF calls so."""
NOT_LINEAR = {
    "Gemma2": "it caps its logits softly",
    "GptOss": "each head has a sink, a logit that no query makes",
    **dict.fromkeys(("Bloom", "Mpt"), "it adds ALiBi to its logits, which θ divides too"),
    **dict.fromkeys(("T5", "MT5", "UMT5"), "it adds a bias of positions to its logits, which θ divides too"),
}
"""Why θ is no factor of the queries of a model, where it is known."""
SWITCHES = {
    "attn_logit_softcapping": "it caps its logits softly",
    "alibi": "it adds ALiBi to its logits, which θ divides too",
    "clip_qkv": "it clips its queries, which a factor would move",
    "qk_layernorm": "it normalises its queries behind the projection",
    "use_qk_norm": "it normalises its queries behind the projection",
    "add_cross_attention": "it attends to another text too",
    **REFUSED,
}
"""Keys of a configuration that must be absent, null or false."""


def queries_of(config: Mapping[str, Any], path: Path) -> tuple[Queries, Shape]:
    """Returns where a model of transformers keeps its queries, and its shape, by its config.json.

    Raises Refusal, with the reason, for a model in which θ is no factor of the queries, and for an unknown one.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    kind = re.sub("(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", "", name) if isinstance(name, str) else ""
    reason = NOT_LINEAR.get(kind) or next((why for key, why in SWITCHES.items() if config.get(key)), None)
    if reason:
        raise Refusal(f"{path} cannot be baked exactly: {reason}; swap when the model runs, with softmax_jax.swap")
    if kind not in ARCHITECTURES:
        rule = f"it must be one of {', '.join(ARCHITECTURES)}"
        raise Refusal(f"{path} holds the architecture {shown(name)}, whose queries are not known: {rule}")
    layers = _count(config, path, "num_hidden_layers", "n_layer")
    heads = _count(config, path, "num_attention_heads", "n_head")
    size = config.get("head_dim") or (config["hidden_size"] // heads if "hidden_size" in config else None)
    return ARCHITECTURES[kind], Shape(layers, heads, size)


def _count(config: Mapping[str, Any], path: Path, *keys: str) -> int:
    """Returns a whole number from 1 on by the first of its names. Raises Refusal if there is none."""
    value = next((config[key] for key in keys if key in config), None)
    if type(value) is not int or value < 1:
        raise Refusal(f"{path}: {keys[0]} is {shown(value)}: it must be a whole number from 1 on")
    return value


def queries_in_gguf(metadata: Mapping[str, Any], path: Path) -> tuple[Queries, Shape]:
    """Returns where a GGUF file keeps its queries, and its shape, by its metadata. Raises Refusal as `queries_of`."""
    kind = metadata.get("general.architecture")
    if kind not in IN_GGUF:
        raise Refusal(
            f"{path} holds the architecture {shown(kind)}: baked in GGUF are {', '.join(IN_GGUF)}; bake the directory "
            "of safetensors that it was made from"
        )
    layers, heads = (_count(metadata, path, f"{kind}.{key}") for key in ("block_count", "attention.head_count"))
    return IN_GGUF[kind], Shape(layers, heads, None)
