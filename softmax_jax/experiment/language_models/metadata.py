"""Reads what the metadata of a GGUF file say of a model."""

from softmax_jax.experiment.language_models.configuration import (
    MOST_LAYERS,
    Description,
    check_groups,
    check_rotary,
    head_size,
    positive_epsilon,
)
from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.experiment.language_models.keys import Keys, known_architecture
from softmax_jax.experiment.language_models.known_keys import FIXED_METADATA, HARMLESS_METADATA

ARCHITECTURES = ("llama", "qwen2")
"""The models that this decoder computes, by their names in GGUF, where a Mistral is a llama."""
AXES = {"width": "embedding_length", "inner": "feed_forward_length", "vocabulary": "vocab_size"}


def read_architecture(metadata: Keys) -> str:
    """Returns the model type. Raises Refusal for one that the decoder does not compute."""
    metadata.only("split.count", FIXED_METADATA["split.count"])
    return known_architecture(metadata.needed("general.architecture"), ARCHITECTURES, metadata.path)


def describe_metadata(metadata: Keys, kind: str, query_rows: int) -> Description:
    """Describes a model of a type. The keys of its tokenizer are read where that is made."""
    keys = Keys(metadata.path, metadata.values, f"{kind}.", metadata.read)
    heads, width = keys.counted("attention.head_count"), keys.whole("embedding_length")
    size = head_size(
        keys, "attention.head_count", query_rows, keys.whole("attention.key_length"), ("embedding_length", width)
    )
    if keys.whole("attention.value_length", size) != size:
        keys.refuse(
            "attention.value_length",
            f"queries have {size} features a head, and this decoder's values as many; choose another",
        )
    key_heads = keys.whole("attention.head_count_kv", heads) or 0
    check_groups(keys, "attention.head_count_kv", heads, key_heads)
    rotary = check_rotary(keys, "rope.dimension_count", keys.whole("rope.dimension_count", most=size), size)
    # llama.cpp pairs other features than its converter left together if only some turn.
    if kind == "llama" and rotary is not None:
        keys.refuse("rope.dimension_count", f"a llama turns all {size} features of a head; choose another model")
    if kind == "qwen2":
        keys.only("attention.scale", (0.0,))  # llama.cpp does not read it there
    context = keys.counted("context_length")
    _check_no_window(keys, context)
    sizes = Sizes(
        heads,
        key_heads,
        context=context,
        base=keys.number("rope.freq_base", 10_000.0, 1.0, 1e30) or 0.0,
        epsilon=positive_epsilon(keys, "attention.layer_norm_rms_epsilon"),
        rotary=rotary,
        scale=keys.number("attention.scale", None, 0.0, 1e6) or None,
    )
    for key, values in FIXED_METADATA.items():
        (metadata if key.startswith(("general.", "split.", "tokenizer.")) else keys).only(key, values)
    axes = {axis: (keys.prefix + key, size) for axis, key in AXES.items() if (size := keys.whole(key)) is not None}
    layers = keys.counted("block_count", MOST_LAYERS)
    for key in ("model", "pre", "tokens", "merges", "token_type"):
        metadata.get(f"tokenizer.ggml.{key}")
    metadata.close(HARMLESS_METADATA)
    return Description(sizes, layers, axes, None, True)


def _check_no_window(keys: Keys, context: int) -> None:
    """Raises Refusal for a window: llama.cpp gives these models none, so the file contradicts its program."""
    window = keys.get("attention.sliding_window", 0)
    if type(window) is not int or 0 != window < context:
        keys.refuse("attention.sliding_window", "whether the model has it is not told; take it as a directory")
