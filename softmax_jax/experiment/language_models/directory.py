"""Loads a model from a directory with config.json, tokenizer.json and safetensors."""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from softmax_jax.experiment.language_models.arrays import MODEL_ARRAYS, Stored, count_rows, read_parameters
from softmax_jax.experiment.language_models.configuration import describe_config, read_architecture
from softmax_jax.experiment.language_models.keys import LARGEST_WEIGHTS, Keys, read_object, shown, unreadable
from softmax_jax.experiment.language_models.model import DecoderModel, checked_tokenizer, require
from softmax_jax.files import opened, read_bytes
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of safetensors that are weights by themselves; others need scales."""
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WEIGHTS = re.compile(r"[\w.-]+\.safetensors")
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
"""The names of a model's files: one with all arrays, or parts that an index lists."""


def load_directory(path: Path) -> DecoderModel:
    """Loads the model of a directory. Raises Refusal for files that are missing, damaged or of another model."""
    check_files(path)
    config = Keys(path / "config.json", read_object(path / "config.json"))
    kind = read_architecture(config)
    arrays = _directory_arrays(path)
    queries = "model.layers.0.self_attn.q_proj.weight"
    description = describe_config(config, kind, count_rows(arrays, queries, path))
    tokenizer = file_tokenizer(path / "tokenizer.json", count_rows(arrays, MODEL_ARRAYS["embed"][1], path))
    return DecoderModel(
        path.name, read_parameters(arrays, description, "model.layers", 1, path), description.sizes, tokenizer
    )


def check_files(path: Path) -> None:
    """Raises Refusal for a directory without a configuration, a tokenizer or weights."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
    if missing or not any(path.glob("*.safetensors")):
        raise Refusal(f"{path} has no {(*missing, '*.safetensors')[0]}: name the directory of a downloaded model")


def file_tokenizer(path: Path, rows: int) -> "Tokenizer":
    """Returns the tokenizer of a tokenizer.json."""
    content = read_bytes(path)
    tokenizers = require("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # which is what tokenizers raises
        raise unreadable(path, error) from None
    return checked_tokenizer(tokenizer, path, rows)


def _directory_arrays(path: Path) -> dict[str, Stored]:
    """Returns the arrays of a directory, each of which is in one file. Raises Refusal for types that need scales."""
    arrays: dict[str, Stored] = {}
    for file in weight_files(path):
        if not file.exists():
            raise Refusal(f"{file} is missing: download all parts of the model")
        stored = _file_arrays(file)
        if repeated := arrays.keys() & stored.keys():
            name = min(repeated)
            raise Refusal(f"{file} and {arrays[name].path.name} both hold the array {shown(name)}: remove one of them")
        arrays |= stored
    for name, array in arrays.items():
        if array.kind not in FLOATS:
            raise Refusal(
                f"{array.path}: the array {shown(name)} is of type {array.kind}, which is no weight by itself: take "
                "the model in bfloat16 or float32, or as GGUF"
            )
    return arrays


def weight_files(path: Path) -> Iterable[Path]:
    """Returns the files with the arrays, as transformers chooses them: one, or those of an index; else all there are.

    Parts without an index are all parts that their names count.
    """
    if (path / WHOLE).exists():
        return [path / WHOLE]
    if (path / INDEX).exists():
        weight_map = read_object(path / INDEX).get("weight_map")
        names = list(weight_map.values()) if isinstance(weight_map, dict) else []
        if not names or not all(isinstance(name, str) and WEIGHTS.fullmatch(name) for name in names):
            raise Refusal(
                f"{path / INDEX}: weight_map must name files of the directory, *.safetensors; download it again"
            )
        return [path / name for name in sorted(set(names))]
    files = sorted(path.glob("*.safetensors"))
    if part := next((match for file in files if (match := SHARD.fullmatch(file.name))), None):
        return (path / f"{part[1]}-{number:05}-of-{part[3]}.safetensors" for number in range(1, int(part[3]) + 1))
    return files


def _file_arrays(file: Path) -> dict[str, Stored]:
    """Returns the arrays of a file of safetensors, which are read later."""
    safetensors = require("safetensors")
    with opened(file, LARGEST_WEIGHTS):  # refuses what is no regular file, which safetensors would wait for
        pass
    try:
        weights = safetensors.safe_open(file, "np")
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118, it is no dictionary
    except (safetensors.SafetensorError, OSError) as error:
        raise unreadable(file, error) from None
    return {
        name: Stored(tuple(part.get_shape()), part.get_dtype(), file, functools.partial(weights.get_tensor, name))
        for name, part in slices.items()
    }
