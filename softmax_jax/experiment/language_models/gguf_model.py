"""Loads a model from a GGUF file: its arrays, quantized or not, and its byte-level tokenizer."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softmax_jax.experiment.language_models.arrays import MODEL_ARRAYS, Stored, count_rows, read_parameters
from softmax_jax.experiment.language_models.gguf_header import Header, read_header
from softmax_jax.experiment.language_models.keys import Keys, shown
from softmax_jax.experiment.language_models.metadata import describe_metadata, read_architecture
from softmax_jax.experiment.language_models.model import DecoderModel, checked_tokenizer, require
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

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


def load_gguf(path: Path) -> DecoderModel:
    """Loads a GGUF file. Raises Refusal for one that is damaged or holds another model."""
    header = read_header(path)
    metadata = Keys(path, header.metadata)
    kind = read_architecture(metadata)
    if "rope_freqs.weight" in header.places:
        raise Refusal(f"{path} scales its rotary positions (rope_freqs.weight), which this decoder does not")
    arrays = _gguf_arrays(header, path)
    description = describe_metadata(metadata, kind, count_rows(arrays, "blk.0.attn_q.weight", path))
    if kind == "llama":
        heads = {"attn_q": description.sizes.heads, "attn_k": description.sizes.key_heads}
        arrays = {name: _paired_by_halves(array, heads.get(name.split(".")[-2])) for name, array in arrays.items()}
    tokenizer = _gguf_tokenizer(header.metadata, path, count_rows(arrays, MODEL_ARRAYS["embed"][0], path))
    parameters = read_parameters(arrays, description, "blk", 0, path)
    return DecoderModel(path.stem, parameters, description.sizes, tokenizer)


def _gguf_arrays(header: Header, path: Path) -> dict[str, Stored]:
    """Returns the arrays of a file. Raises Refusal for an unknown type, and for bytes outside of the file or shared."""
    blocks = {name: blocks_of(header, name, path) for name in header.places}
    spans = sorted((array.start, array.end) for array in blocks.values())
    if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
        raise Refusal(f"{path}: two arrays have bytes in common: it is damaged; download it again")

    def stored(name: str, array: Blocks) -> Stored:
        def read() -> np.ndarray:
            data = header.data[array.start : array.end].reshape(*array.shape[:-2], -1)
            try:
                return require("gguf").dequantize(data, array.kind)
            except NotImplementedError:
                raise Refusal(
                    f"{path} holds the quantization {array.kind.name}, which gguf cannot read: choose another"
                ) from None

        return Stored(header.places[name].shape, array.kind.name, path, read)

    return {name: stored(name, array) for name, array in blocks.items()}


class Blocks(NamedTuple):
    """The bytes of an array."""

    start: int
    end: int
    kind: Any
    """Its `gguf.GGMLQuantizationType`."""
    shape: tuple[int, ...]
    """That of its bytes: rows × blocks × bytes of a block. A number that is not quantized is a block."""


def blocks_of(header: Header, name: str, path: Path) -> Blocks:
    """Returns where an array lies. Raises Refusal for an unknown type, and for bytes outside of the file."""
    gguf, place = require("gguf"), header.places[name]
    try:
        kind = gguf.GGMLQuantizationType(place.kind)
        entries, size = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise Refusal(f"{path}: the array {shown(name)} is of type {place.kind}, which gguf does not know") from None
    *rows, width = place.shape
    if width % entries:
        raise Refusal(f"{path}: the rows of {shown(name)} have {width} entries, not blocks of {entries}")
    shape = (*rows, width // entries, size)
    end = place.start + math.prod(shape)
    if end > len(header.data):
        raise Refusal(f"{path} is cut off: the array {shown(name)} ends at byte {end:,}; download it again")
    return Blocks(place.start, end, kind, shape)


def _paired_by_halves(array: Stored, heads: int | None) -> Stored:
    """Returns an array of queries or keys with rows (2i, 2i + 1) of each head moved to (i, i + half).

    The converter of llama.cpp pairs neighbours, safetensors pair halves. Arrays without heads (None) stay.
    """
    if heads is None or array.shape[0] % (2 * heads):
        return array  # rows that no head divides are refused with their shape

    def read() -> np.ndarray:
        values = array.read()
        return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)

    return array._replace(read=read)


def _gguf_tokenizer(metadata: Mapping[str, Any], path: Path, rows: int) -> "Tokenizer":
    """Returns the byte-level tokenizer that the file describes, of at most as many tokens as the embedding has rows."""
    tokenizers = require("tokenizers")
    fields = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    cut = fields.get("pre", "default")
    if fields.get("model") != "gpt2" or cut not in (*SPLITS, "smollm", "default"):
        raise Refusal(
            f"{path} holds the tokenizer {shown(fields.get('model'))} ({shown(cut)}): only byte-level ones are read "
            f"from GGUF, cut as {', '.join(SPLITS)} or smollm; take the model as a directory with tokenizer.json"
        )
    tokens, merges = (_texts(fields, name, path) for name in ("tokens", "merges"))
    kinds = fields.get("token_type", [1] * len(tokens))
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
        merger = tokenizers.models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe")
    except Exception as error:  # which is what tokenizers raises
        raise Refusal(f"{path}: tokenizer.ggml.merges cannot be read: {error}; choose another model") from None
    tokenizer = tokenizers.Tokenizer(merger)
    pre = tokenizers.pre_tokenizers
    digits = [pre.Digits(individual_digits=True)] if cut == "smollm" else []
    split = pre.Split(tokenizers.Regex(SPLITS.get(cut, SPLITS["gpt-2"])), "isolated")
    tokenizer.pre_tokenizer = pre.Sequence([*digits, split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    tokenizer.add_tokens([token for token, kind in zip(tokens, kinds) if kind == DEFINED])
    return checked_tokenizer(tokenizer, path, rows)


def _texts(fields: Mapping[str, Any], name: str, path: Path) -> list[str]:
    """Returns a list of texts of the tokenizer. Raises Refusal for anything else."""
    texts = fields.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Refusal(f"{path}: tokenizer.ggml.{name} is {shown(texts)}: it must be a list of texts")
    return texts
