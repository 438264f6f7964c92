"""Reads what config.json says of a model."""

import dataclasses

from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.experiment.language_models.keys import Keys, known_architecture, shown
from softmax_jax.experiment.language_models.known_keys import FIXED, HARMLESS, HARMLESS_IN_LLAMA, REFUSED
from softmax_jax.refusal import Refusal

MOST_LAYERS = 10_000
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}
"""What config.json calls the models that this decoder computes, and the model type of each."""
KEY_HEADS = {"mistral": 8, "qwen2": 32}
"""Heads of keys and values where config.json does not say: those of transformers. Llama has as many as of queries."""
WINDOW = 4096
"""The window of Mistral and Qwen2 where config.json does not say."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""The values of layer_types that are computed."""
AXES = {"width": "hidden_size", "inner": "intermediate_size", "vocabulary": "vocab_size"}


@dataclasses.dataclass(frozen=True)
class Description:
    """What a configuration says of a model, besides its arrays."""

    sizes: Sizes
    layers: int
    axes: dict[str, tuple[str, int]]
    """The sizes of the axes that it names, of `width`, `inner` and `vocabulary`, each with its key."""
    tied: bool | None
    """Whether the embedding also gives the scores; None if it does where the file has no array for them."""
    biases: bool
    """Whether queries, keys and values may have biases."""


def read_architecture(config: Keys) -> str:
    """Returns the model type. Raises Refusal for one that the decoder does not compute."""
    for key, reason in REFUSED.items():
        if config.get(key) is not None:
            config.refuse(key, reason)
    names = config.get("architectures", ["unknown"])
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        config.refuse("architectures", "it must name one architecture; choose another model")
    kind = ARCHITECTURES[known_architecture(names[0], ARCHITECTURES, config.path)]
    config.only("model_type", (kind,))
    return kind


def describe_config(config: Keys, kind: str, query_rows: int) -> Description:
    """Describes a model of a type. `query_rows` are the features of its queries, all heads together."""
    heads, layers = config.counted("num_attention_heads"), config.counted("num_hidden_layers", MOST_LAYERS)
    width = config.whole("hidden_size")
    default = heads if "num_key_value_heads" in config.values else KEY_HEADS.get(kind, heads)  # null: as many
    key_heads = config.whole("num_key_value_heads", default) or 0
    size = head_size(config, "num_attention_heads", query_rows, config.whole("head_dim"), ("hidden_size", width))
    check_groups(config, "num_key_value_heads", heads, key_heads)
    window, windowed = _windows(config, kind, layers)
    rope = _rope(config)
    sizes = Sizes(
        heads,
        key_heads,
        context=config.counted("max_position_embeddings"),
        base=rope.number("rope_theta", 10_000.0, 1.0, 1e30) or 0.0,
        epsilon=positive_epsilon(config, "rms_norm_eps"),
        window=window,
        windowed=windowed,
        rotary=_rotary(config, rope, size),
    )
    tied = config.switch("tie_word_embeddings", False)
    config.only("attention_bias", (True,) if kind == "qwen2" else (False,))  # with it, Llama has one behind, too
    for key, values in FIXED.items():
        config.only(key, values)
    axes = {axis: (key, size) for axis, key in AXES.items() if (size := config.whole(key)) is not None}
    config.close(HARMLESS + (HARMLESS_IN_LLAMA if kind == "llama" else ()))
    return Description(sizes, layers, axes, tied, kind == "qwen2")


def positive_epsilon(keys: Keys, key: str) -> float:
    """Returns the ε of RMSNorm, which must be there."""
    keys.needed(key)
    return keys.number(key, None, 1e-30, 1.0) or 0.0


def head_size(keys: Keys, heads_key: str, query_rows: int, size: int | None, width: tuple[str, int | None]) -> int:
    """Returns the features of a head.

    They are those of the array of queries. A size that the file gives must be the same, and so must its width over its
    heads where it gives none.
    """
    heads = keys.counted(heads_key)
    if query_rows % heads or query_rows // heads % 2:
        keys.refuse(
            heads_key,
            f"the queries have {query_rows} features, which {heads} heads of even size do not divide; choose another",
        )
    stored = query_rows // heads
    if size is None and width[1] is not None:
        if width[1] % heads:
            keys.refuse(width[0], f"{heads} heads must divide it; choose another model")
        size = width[1] // heads
    if size not in (None, stored):
        keys.refuse(
            heads_key, f"heads have {size} features by the file and {stored} by its queries; choose another model"
        )
    return stored


def check_groups(keys: Keys, key: str, heads: int, key_heads: int) -> None:
    """Raises Refusal unless the heads of keys and values divide those of queries."""
    if heads % key_heads:
        raise Refusal(
            f"{keys.path}: {heads} heads and {key_heads} by {keys.prefix}{key}: these must divide those; "
            "choose another model"
        )


def _rope(config: Keys) -> Keys:
    """Returns the settings of rotary positions. Raises Refusal for scaled ones.

    transformers 5 writes `rope_parameters`; 4 writes `rope_theta` beside `rope_scaling`, which is null or scales.
    """
    settings = {}
    for name in ("rope_parameters", "rope_scaling"):
        part = config.get(name, {})
        if not isinstance(part, dict):
            config.refuse(name, "it must be an object; choose another model")
        given = {key: value for key, value in part.items() if value is not None}
        scaled = given.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        if scaled or [given.get(key, "default") for key in ("rope_type", "type")] != ["default"] * 2:
            config.refuse(name, "this scales the rotary positions, which this decoder does not; choose another model")
        settings |= given
    for key in ("rope_theta", "partial_rotary_factor"):
        value = config.get(key)
        if key in settings and value not in (None, settings[key]):
            config.refuse(key, f"it is {shown(settings[key])} among the rotary parameters; remove one of the two")
        settings.setdefault(key, value)
    return Keys(config.path, settings)


def _rotary(config: Keys, rope: Keys, size: int) -> int | None:
    """Returns how many features of a head turn, from the first on; None for all.

    transformers turns all features of these models. vLLM computes the partial rotation that Phi and StableLM have.
    """
    factor = rope.number("partial_rotary_factor", None, 1e-6, 1.0)
    features = config.whole("rotary_dim", most=size)
    if factor is not None:
        if features not in (None, int(size * factor)):
            config.refuse("rotary_dim", f"partial_rotary_factor gives {int(size * factor)} of {size}; remove one")
        features = int(size * factor)
    return check_rotary(config, "rotary_dim", features, size)


def check_rotary(keys: Keys, key: str, features: int | None, size: int) -> int | None:
    """Returns how many features of a head turn; None for all."""
    if features is not None and (features < 2 or features % 2):
        raise Refusal(
            f"{keys.path}: {features} of {size} features of a head turn ({keys.prefix}{key}): they turn in pairs; "
            "choose another model"
        )
    return None if features == size else features


def _windows(config: Keys, kind: str, layers: int) -> tuple[int | None, tuple[bool, ...] | None]:
    """Returns the window and which layers have it, None for all of them.

    As in transformers:

    - Llama has no window, whatever its file says.
    - Mistral has it in every layer.
    - Qwen2 has it if `use_sliding_window` is true, which is false by default: in the layers of `layer_types`, else from
      `max_window_layers` on.
    """
    types = _layer_types(config, layers)
    window = config.whole("sliding_window", None if "sliding_window" in config.values else WINDOW)
    if kind == "llama":
        windowed = [False] * layers
    elif kind == "mistral":
        windowed = [window is not None] * layers
        if window is not None:
            config.only("use_sliding_window", (True,))
        config.get("use_sliding_window")
    else:
        used, first = config.switch("use_sliding_window", False), config.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            config.refuse("max_window_layers", "it must be a whole number from 0 on; choose another model")
        sliding = [layer >= first if types is None else types[layer] == SLIDING for layer in range(layers)]
        windowed = [used and window is not None and slides for slides in sliding]
    if types is not None and windowed != [name == SLIDING for name in types]:
        config.refuse("layer_types", "the other keys give the window to other layers; choose another model")
    if not any(windowed):
        return None, None
    return window, None if all(windowed) else tuple(windowed)


def _layer_types(config: Keys, layers: int) -> list[str] | None:
    """Returns the types of attention of all layers, if the file names them."""
    types = config.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers:
        config.refuse("layer_types", f"it must be a list of {layers} types, one a layer; choose another model")
    if not all(name in (FULL, SLIDING) for name in types):
        config.refuse("layer_types", f"this decoder computes {FULL} and {SLIDING}; choose another model")
    return types
