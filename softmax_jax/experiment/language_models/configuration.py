"""What config.json and the metadata of GGUF say of a model.

Every key is read, has a value that changes nothing, is named in a table with the reason why it changes nothing, or is
refused. A key whose value is null says nothing.
"""

import dataclasses
import fnmatch
import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.refusal import Refusal

LARGEST_JSON, LARGEST_TOKENIZER = 2**24, 2**28
"""Bytes of a config.json or an index, and of a tokenizer.json, at most."""
MOST = 2**31 - 1
"""Positions, layers, heads and features at most, which are counted in int32."""
MOST_LAYERS = 10_000
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}
"""What config.json calls the models that this decoder computes, and the model type of each."""
GGUF_ARCHITECTURES = ("llama", "qwen2")
"""The same of GGUF, where a Mistral is a llama."""
KEY_HEADS = {"mistral": 8, "qwen2": 32}
"""Heads of keys and values where config.json does not say: those of transformers. Llama has as many as of queries."""
WINDOW = 4096
"""The window of Mistral and Qwen2 where config.json does not say."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""The values of layer_types that are computed."""

Table = tuple[tuple[str, str], ...]
"""Reasons, each with names, in which * stands for any text."""
HARMLESS: Table = (
    (
        "tells where the model comes from",
        "_name_or_path name_or_path _commit_hash transformers_version is_llama_config",
    ),
    ("tells which program wrote or adapted the file", "unsloth_version unsloth_fixed transformers.js_config"),
    (
        "is for other uses of a text than its loss",
        "task_specific_params finetuning_task problem_type prefix num_labels",
    ),
    ("names the classes of a head that is not read", "id2label label2id"),
    (
        "acts in training only",
        "attention_dropout hidden_dropout initializer_range gradient_checkpointing tf_legacy_loss",
    ),
    ("tells how others compute the same numbers", "pretraining_tp chunk_size_feed_forward torchscript use_cache"),
    ("tells what others return", "output_attentions output_hidden_states output_scores return_dict*"),
    (
        "chooses a kernel for the same attention",
        "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled is_decoder",
    ),
    (
        "tells a type: that of the arrays is read from them, and all is computed in float32",
        "dtype torch_dtype use_bfloat16",
    ),
    (
        "names tokens that are never added to a text",
        "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id forced_bos_token_id "
        "forced_eos_token_id tokenizer_class",
    ),
    ("is read by no llama of transformers, which reads max_position_embeddings", "max_sequence_length"),
    (
        "says how to draw text, which is not done",
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens max_new_tokens cache_implementation",
    ),
)
"""Keys of config.json that are not read, as none of them changes the logits of a text."""
HARMLESS_IN_LLAMA: Table = (("a Llama of transformers has no window", "use_sliding_window max_window_layers"),)
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
}
"""Keys of config.json with the values that this decoder computes."""
REFUSED = {
    "auto_map": "it names code that comes with the model, which is never run; take a model of transformers itself",
    "quantization_config": "the weights are quantized; take the model in bfloat16 or float32, or as GGUF",
    "compression_config": "the weights are compressed; take the model in bfloat16 or float32, or as GGUF",
}
"""Keys whose remedy is another than choosing another model."""
HARMLESS_METADATA: Table = (
    ("tells what the model is called and where it comes from", "general.name general.author general.version"),
    (
        "tells the same",
        "general.organization general.finetune general.basename general.description general.quantized_by "
        "general.size_label general.license* general.url general.doi general.uuid general.repo_url general.source.* "
        "general.base_model.* general.dataset.* general.datasets general.tags general.languages",
    ),
    ("is known from the types of the arrays", "general.file_type general.quantization_version"),
    ("is where the reader finds the arrays", "general.alignment"),
    (
        "says how to draw text, which is not done",
        "general.sampling.* tokenizer.chat_template* tokenizer.chat_templates",
    ),
    ("tells how the file was quantized", "quantize.imatrix.* imatrix.* mradermacher.*"),
    (
        "names tokens that are never added to a text",
        "tokenizer.ggml.*_token_id tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token "
        "tokenizer.ggml.add_sep_token",
    ),
    ("is for other kinds of tokenizers", "tokenizer.ggml.scores tokenizer.ggml.token_type_count"),
    ("repeats the tokenizer in another form", "tokenizer.huggingface.json"),
    ("numbers the parts of a file that has one", "split.no split.tensors.count"),
    ("is of scaled positions, which are refused", "*.rope.scaling.finetuned"),
)
"""Keys of the metadata of GGUF that are not read."""
FIXED_METADATA: dict[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "split.count": (0, 1),
    "tokenizer.ggml.add_space_prefix": (False,),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),  # llama.cpp scales by it where no type is told
    "rope.scale_linear": (1.0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("Meta AI original pth",),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
}
"""Keys of the metadata with the values that this decoder computes; those of the architecture without its name."""


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60
SHORT.maxlevel = 2


def shown(value: Any) -> str:
    """Returns a value of a file in a line: its start and end where it is long.

    >>> shown("a tale of many words " * 10**6), shown(list(range(10**6)))
    ("'a tale of many words a tale... words a tale of many words '", '[0, 1, 2, 3, 4, 5, ...]')
    """
    return SHORT.repr(value)


def listed(key: str, table: Table) -> bool:
    """Says whether a key is in a table of harmless ones."""
    return any(fnmatch.fnmatchcase(key, name) for _, names in table for name in names.split())


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of a configuration, which notes what was read of them.

    `prefix` stands in front of the keys that are read and is told in refusals.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    read: set[str] = dataclasses.field(default_factory=set)

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raises the refusal of a value."""
        value = self.values.get(self.prefix + key)
        raise Refusal(f"{self.path}: {self.prefix + key} is {shown(value)}: {rule}")

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, which is noted as read; the default for one that is absent or null."""
        self.read.add(self.prefix + key)
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def needed(self, key: str) -> Any:
        """Returns the value of a key that must be there."""
        if (value := self.get(key)) is None:
            raise Refusal(f"{self.path} does not say {self.prefix + key}: this is no llama-like model")
        return value

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int | None:
        """Returns a whole number from 1 on, or the default."""
        value = self.get(key, default)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            self.refuse(key, f"it must be a whole number from 1 to {most}; choose another model")
        return value

    def counted(self, key: str, most: int = MOST) -> int:
        """Returns a whole number from 1 on that must be there."""
        self.needed(key)
        return self.whole(key, most=most) or 0

    def number(self, key: str, default: float | None, least: float, most: float) -> float | None:
        """Returns a number between two others, or the default."""
        value = self.get(key, default)
        if value is None:
            return None
        if type(value) not in (int, float) or not least <= value <= most:
            self.refuse(key, f"it must be a number from {least:g} to {most:g}; choose another model")
        return float(value)

    def switch(self, key: str, default: bool) -> bool:
        """Returns a truth value, or the default."""
        value = self.get(key, default)
        if type(value) is not bool:
            self.refuse(key, "it must be true or false; choose another model")
        return value

    def only(self, key: str, values: Iterable[Any]) -> None:
        """Raises Refusal for another value than those that the decoder computes."""
        values = tuple(values)
        value = self.get(key, values[0])
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values):
            wanted = " or ".join(map(repr, values))
            self.refuse(key, f"this decoder computes {wanted} only; choose another model")

    def close(self, harmless: Table) -> None:
        """Raises Refusal for a key that was not read and is not known to be harmless."""
        for key, value in self.values.items():
            if key in self.read or value is None or listed(key, harmless):
                continue
            rule = "this decoder does not know the key, which may change what is computed; choose another model"
            raise Refusal(f"{self.path}: {shown(key)[1:-1]} is {shown(value)}: {rule}")


@dataclasses.dataclass(frozen=True)
class Description:
    """What a configuration says of a model, beside its arrays."""

    sizes: Sizes
    layers: int
    axes: dict[str, tuple[str, int]]
    """The sizes of axes that it tells: `width`, `inner` and `vocabulary`, each with its key."""
    tied: bool | None
    """Whether the embedding gives the scores, too; None if it does so where the file has no array for them."""
    biases: bool
    """Whether queries, keys and values may have biases."""


def architecture_of(config: Keys) -> str:
    """Returns the model type that config.json tells. Raises Refusal for one that the decoder does not compute."""
    for key, reason in REFUSED.items():
        if config.get(key) is not None:
            config.refuse(key, reason)
    names = config.get("architectures", ["unknown"])
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        config.refuse("architectures", "it must name one architecture; choose another model")
    kind = ARCHITECTURES[known_architecture(names[0], ARCHITECTURES, config.path)]
    config.only("model_type", (kind,))
    return kind


def known_architecture(name: Any, known: Iterable[str], path: Path) -> str:
    """Returns the name of an architecture. Raises Refusal for one that is not known."""
    if not isinstance(name, str) or name not in known:
        raise Refusal(f"{path} holds the architecture {shown(name)}: it must be one of {', '.join(known)}")
    return name


def described_by_config(config: Keys, kind: str, query_rows: int) -> Description:
    """Returns what config.json says of a model of this type, whose queries have so many features in all heads."""
    heads, layers = config.counted("num_attention_heads"), config.counted("num_hidden_layers", MOST_LAYERS)
    width = config.whole("hidden_size")
    absent = "num_key_value_heads" not in config.values
    key_heads = config.whole("num_key_value_heads", KEY_HEADS.get(kind, heads) if absent else heads)
    size = _head_size(config, "num_attention_heads", query_rows, config.whole("head_dim"), ("hidden_size", width))
    _check_groups(config, "num_key_value_heads", heads, key_heads or 0)
    window, windowed = _windows(config, kind, layers)
    rope = _rope(config)
    sizes = Sizes(
        heads,
        key_heads or 0,
        context=config.counted("max_position_embeddings"),
        base=rope.number("rope_theta", 10_000.0, 1.0, 1e30) or 0.0,
        epsilon=_epsilon(config, "rms_norm_eps"),
        window=window,
        windowed=windowed,
        rotary=_rotary(config, rope, size),
    )
    tied = config.switch("tie_word_embeddings", False)
    config.only("attention_bias", (True,) if kind == "qwen2" else (False,))  # with it, Llama has one behind, too
    for key, values in FIXED.items():
        config.only(key, values)
    axes = {"width": "hidden_size", "inner": "intermediate_size", "vocabulary": "vocab_size"}
    told = {axis: (key, value) for axis, key in axes.items() if (value := config.whole(key)) is not None}
    config.close(HARMLESS + (HARMLESS_IN_LLAMA if kind == "llama" else ()))
    return Description(sizes, layers, told, tied, kind == "qwen2")


def _epsilon(keys: Keys, key: str) -> float:
    keys.needed(key)
    return keys.number(key, None, 1e-30, 1.0) or 0.0


def _head_size(keys: Keys, heads_key: str, query_rows: int, size: int | None, width: tuple[str, int | None]) -> int:
    """Returns the features of a head: those of the array, with which the file must agree."""
    heads = keys.counted(heads_key)
    if query_rows % heads or query_rows // heads % 2:
        keys.refuse(
            heads_key,
            f"the queries have {query_rows} features, which so many heads of even size do not divide; choose another",
        )
    found = query_rows // heads
    if size is None and width[1] is not None:
        if width[1] % heads:
            keys.refuse(width[0], f"{heads} heads must divide it; choose another model")
        size = width[1] // heads
    if size not in (None, found):
        keys.refuse(
            heads_key, f"heads have {size} features by the file and {found} by its queries; choose another model"
        )
    return found


def _check_groups(keys: Keys, key: str, heads: int, key_heads: int) -> None:
    if heads % key_heads:
        raise Refusal(
            f"{keys.path}: {heads} heads and {key_heads} by {keys.prefix}{key}: these must divide those; "
            "choose another model"
        )


def _rope(config: Keys) -> Keys:
    """Returns where config.json tells of rotary positions. Raises Refusal for scaled ones.

    transformers 5 writes `rope_parameters`; 4 writes `rope_theta` beside `rope_scaling`, which is null or scales.
    """
    told = {}
    for name in ("rope_parameters", "rope_scaling"):
        part = config.get(name, {})
        if not isinstance(part, dict):
            config.refuse(name, "it must be an object; choose another model")
        inner = {key: value for key, value in part.items() if value is not None}
        scaled = inner.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        if scaled or [inner.get(key, "default") for key in ("rope_type", "type")] != ["default"] * 2:
            config.refuse(name, "this scales the rotary positions, which this decoder does not; choose another model")
        told |= inner
    for key in ("rope_theta", "partial_rotary_factor"):
        beside = config.get(key)
        if key in told and beside not in (None, told[key]):
            config.refuse(
                key, f"it is {shown(told[key])} among the rotary parameters: which one holds is not told; remove one"
            )
        told.setdefault(key, beside)
    return Keys(config.path, told)


def _rotary(config: Keys, rope: Keys, size: int) -> int | None:
    """Returns how many features of a head turn, from the first on; None for all.

    transformers does not compute this of these models: vLLM does, and Phi and StableLM have it.
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
    """Returns the window, and which layers have it; None for all of them.

    As in transformers: Llama has none, whatever its file says. Mistral has it in every layer. Qwen2 has it where
    `use_sliding_window` is true, which it is not unless told: in the layers of `layer_types`, else from
    `max_window_layers` on.
    """
    types = config.get("layer_types")
    if types is not None and (not isinstance(types, list) or len(types) != layers):
        config.refuse("layer_types", f"it must be a list of {layers} types, one a layer; choose another model")
    if types is not None and not all(one in (FULL, SLIDING) for one in types):
        config.refuse("layer_types", f"this decoder computes {FULL} and {SLIDING}; choose another model")
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
        behind = [layer >= first if types is None else types[layer] == SLIDING for layer in range(layers)]
        windowed = [used and window is not None and one for one in behind]
    if types is not None and windowed != [one == SLIDING for one in types]:
        config.refuse("layer_types", "the other keys tell of other layers with a window; choose another model")
    if not any(windowed):
        return None, None
    return window, None if all(windowed) else tuple(windowed)


def architecture_of_metadata(metadata: Keys) -> str:
    """Returns the model type that the metadata of GGUF tell. Raises Refusal for one that is not computed."""
    metadata.only("split.count", FIXED_METADATA["split.count"])
    return known_architecture(metadata.needed("general.architecture"), GGUF_ARCHITECTURES, metadata.path)


def described_by_metadata(metadata: Keys, kind: str, query_rows: int) -> Description:
    """Returns what the metadata of GGUF say, whose keys of the tokenizer are read elsewhere."""
    keys = Keys(metadata.path, metadata.values, f"{kind}.", metadata.read)
    heads, width = keys.counted("attention.head_count"), keys.whole("embedding_length")
    size = _head_size(
        keys, "attention.head_count", query_rows, keys.whole("attention.key_length"), ("embedding_length", width)
    )
    if keys.whole("attention.value_length", size) != size:
        keys.refuse(
            "attention.value_length",
            f"queries have {size} features a head, and this decoder's values as many; choose another",
        )
    key_heads = keys.whole("attention.head_count_kv", heads) or 0
    _check_groups(keys, "attention.head_count_kv", heads, key_heads)
    rotary = check_rotary(keys, "rope.dimension_count", keys.whole("rope.dimension_count", most=size), size)
    if (
        kind == "llama" and rotary is not None
    ):  # so does llama.cpp, which pairs other features than its converter left together
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
        epsilon=_epsilon(keys, "attention.layer_norm_rms_epsilon"),
        rotary=rotary,
        scale=keys.number("attention.scale", None, 0.0, 1e6) or None,
    )
    for key, values in FIXED_METADATA.items():
        (metadata if key.startswith(("general.", "split.", "tokenizer.")) else keys).only(key, values)
    axes = {"width": "embedding_length", "inner": "feed_forward_length", "vocabulary": "vocab_size"}
    told = {axis: (keys.prefix + key, one) for axis, key in axes.items() if (one := keys.whole(key)) is not None}
    layers = keys.counted("block_count", MOST_LAYERS)
    for key in ("model", "pre", "tokens", "merges", "token_type"):
        metadata.get(f"tokenizer.ggml.{key}")
    metadata.close(HARMLESS_METADATA)
    return Description(sizes, layers, told, None, True)


def _check_no_window(keys: Keys, context: int) -> None:
    """Raises Refusal for a window: llama.cpp gives these models none, so the file contradicts its program."""
    window = keys.get("attention.sliding_window", 0)
    if type(window) is not int or 0 != window < context:
        keys.refuse("attention.sliding_window", "whether the model has it is not told; take it as a directory")


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object that a file of JSON holds. Raises Refusal for anything else, and for a key that is twice."""
    check_regular(path, LARGEST_JSON)
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except RecursionError:
        raise unreadable(path, "it is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, of a whole number of too many digits
        raise unreadable(path, str(error).partition(";")[0]) from None
    if not isinstance(value, dict):
        raise Refusal(f"{path} holds {shown(value)}: it must be an object, with keys and values")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {shown(name)} twice")
    return value


def check_regular(path: Path, most: int | None = None) -> None:
    """Raises Refusal for anything but a regular file of a bounded size, such as a directory, a FIFO or a device."""
    if not path.is_file():
        raise Refusal(f"{path} is no regular file: it must be one that was downloaded whole")
    if most is not None and (size := path.stat().st_size) > most:
        raise Refusal(f"{path} has {size:,} bytes: a file of its kind may have at most {most:,}, so name another")


def unreadable(path: Path, problem: object) -> Refusal:
    """Returns the refusal of a file that is not what its name says, with what it is where its start tells."""
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    if start.startswith(b"version https://git-lfs"):
        return Refusal(f"{path} is a pointer of git-lfs, not the file: fetch it with git lfs pull")
    if start.startswith(b"<"):
        return Refusal(f"{path} is a web page, not the file: download the file itself")
    return Refusal(f"{path} cannot be read: {' '.join(str(problem).split())[:200]}; download it again")
