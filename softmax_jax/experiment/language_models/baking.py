"""Bakes temperatures into a checkpoint: plain softmax of the new model is softmax(z / θ) of the old, in any program.

Only the numbers that make the queries change, in a copy; all other bytes are those of the old files.
"""

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from softmax_jax.experiment.language_models.gguf_header import read_header
from softmax_jax.experiment.language_models.keys import LARGEST_OBJECT, LARGEST_WEIGHTS, read_object, shown, unreadable
from softmax_jax.experiment.language_models.model import require
from softmax_jax.experiment.language_models.queries import NOT_QUERIES, Queries, Shape, queries_in_gguf, queries_of
from softmax_jax.files import PARTIAL, exists, make_directory, not_written, opened, sha256_of, versions, write_json
from softmax_jax.refusal import Refusal

BAKED = "baked.json"
"""What was baked: in the new directory, or beside the new GGUF file with its name in front."""
FLOATS: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
"""The types of numbers that stand alone, by their names in safetensors and in GGUF."""
FACTORS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Where a quantized block has its factors d and m, in half precision, by their first byte.

The numbers of a block are d·q, d·q + m, or d·q - m·p with whole q and p. So d/θ and m/θ divide all of them by θ.
"""
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")
"""Files that may hold the old weights once more. They are not copied."""


class Numbers(NamedTuple):
    """Where a file has an array whose features are scaled."""

    name: str
    start: int
    end: int
    kind: str
    shape: tuple[int, ...]
    """The shape of the array; of a quantized one that of its bytes, as rows × blocks × bytes."""

    def views(self, data: np.ndarray) -> list[np.ndarray]:
        """Returns the numbers to scale as views of the file's bytes."""
        held = data[self.start : self.end]
        if self.kind in FLOATS:
            return [held.view(FLOATS[self.kind]).reshape(self.shape)]
        blocks = held.reshape(self.shape)
        return [blocks[..., first : first + 2].view(np.float16)[..., 0] for first in FACTORS[self.kind]]


def bake(
    source: Path | str,
    theta: Float[np.ndarray, "layers heads"],
    output: Path | str,
    provenance: Mapping[str, Any] | None = None,
) -> float:
    r"""Writes a copy of a checkpoint in which query head h of layer l has the temperature θ under plain softmax.

    $$q_{lh} \leftarrow q_{lh} / \theta_{lh}$$

    Arguments:
        source: A directory with config.json and safetensors, or a GGUF file, whose quantized blocks stay quantized.
        theta: A number above 0 for each layer and query head; as (layers, 1), one for all heads of a layer.
        output: The new directory or GGUF file, which must not be there.
        provenance: What else baked.json should say: the texts, the steps, whatever made the numbers.

    Returns:
        The largest relative error of a number that was rounded to the type of its file: at most 2⁻¹¹ in half
        precision and 2⁻⁸ in bfloat16, more for numbers too small for these types.

    Raises:
        Refusal: in one line, with nothing written, for a model in which θ is no factor of the queries, for numbers of
            another shape, for files that are damaged, for an output that is there.

    Source: Nikitina et al., "HeadScale", arXiv 2404.12224, has the factor as code of its own.
    """
    source, output, theta = Path(source), Path(output), np.asarray(theta, np.float64)
    if not (theta > 0).all() or not np.isfinite(theta).all():
        raise Refusal(f"theta has {shown(theta.min())}: each temperature must be a number above 0")
    if exists(output):
        raise Refusal(f"{output} is there already: name a new one")
    make_directory(output.parent)
    partial = output.with_name(f".{output.name}{PARTIAL}")
    whole = source.is_dir()
    try:
        error, files = (_bake_directory if whole else _bake_gguf)(source, theta, partial)
        told = {"theta": theta.tolist(), "source": files, "rounding_error": error, "versions": versions()}
        beside = partial / BAKED if whole else output.with_name(f"{output.name}.{BAKED}")
        write_json(beside, told | dict(provenance or {}))
        partial.rename(output)
    except OSError as problem:
        raise not_written(output, problem) from problem
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    return error


def _bake_directory(source: Path, theta: np.ndarray, partial: Path) -> tuple[float, dict[str, str]]:
    """Writes the new directory. Returns the rounding error, and the SHA-256 of the old files."""
    queries, shape = queries_of(read_object(source / "config.json"), source)
    files = sorted(source.glob("*.safetensors"))
    arrays = {file: list(_safetensors(file)) for file in files}
    _check_layers(theta, queries, shape, (array.name for held in arrays.values() for array in held), source)
    shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*OTHER_WEIGHTS, f"*{PARTIAL}"))
    error = max(_scale_file(partial / file.name, held, theta, queries, shape) for file, held in arrays.items())
    return error, {file.name: sha256_of(file, LARGEST_WEIGHTS) for file in files}


def _bake_gguf(source: Path, theta: np.ndarray, partial: Path) -> tuple[float, dict[str, str]]:
    """Writes the new GGUF file. Returns the rounding error, and the SHA-256 of the old one."""
    gguf = require("gguf")
    header = read_header(source)
    if header.metadata.get("split.count", 0) > 1:
        raise Refusal(f"{source} is one of {header.metadata['split.count']} parts: join them with llama-gguf-split")
    queries, shape = queries_in_gguf(header.metadata, source)
    arrays = []
    for name, place in header.places.items():
        kind = gguf.GGMLQuantizationType(place.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = place.shape[:-1], place.shape[-1] // block
        end = place.start + math.prod(rows) * blocks * size
        arrays.append(
            Numbers(name, place.start, end, kind.name, place.shape if kind.name in FLOATS else (*rows, blocks, size))
        )
    _check_layers(theta, queries, shape, header.places, source)
    shutil.copyfile(source, partial)
    return _scale_file(partial, arrays, theta, queries, shape), {source.name: sha256_of(source, LARGEST_WEIGHTS)}


def _safetensors(file: Path) -> Iterator[Numbers]:
    """Yields the arrays of a file of safetensors: a length, a header in JSON, and bytes."""
    with opened(file, LARGEST_WEIGHTS) as opened_file:
        length = int.from_bytes(opened_file.read(8), "little")
        text = opened_file.read(min(length, LARGEST_OBJECT))
    size, start = file.stat().st_size, 8 + length
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                if not 0 <= first <= last <= size - start:
                    raise ValueError(f"the array {name} ends behind the file")
                yield Numbers(name, start + first, start + last, entry["dtype"], tuple(entry["shape"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(file, error) from None


def _check_layers(theta: np.ndarray, queries: Queries, shape: Shape, names: Iterable[str], source: Path) -> None:
    """Raises Refusal unless there are numbers and arrays for each layer, and one number where its heads share one."""
    if theta.shape not in ((shape.layers, shape.heads), (shape.layers, 1)):
        raise Refusal(
            f"theta has the shape {theta.shape}, and {source} has {shape.layers} layers of {shape.heads} query heads: "
            f"give ({shape.layers}, {shape.heads}) numbers, or ({shape.layers}, 1)"
        )
    if queries.by_layer and (theta != theta[:, :1]).any():
        raise Refusal(
            f"{source} normalises its queries with one weight for all heads of a layer, so only one θ per layer can be "
            f"baked: give ({shape.layers}, 1) numbers"
        )
    found = {int(match[1]) for name in names if (match := re.fullmatch(queries.names, name))}
    if found != set(range(shape.layers)):
        raise Refusal(
            f"{source} has queries of {len(found)} layers and tells of {shape.layers}: it is not whole, or names them "
            "in another way; download all of it"
        )


def _scale_file(file: Path, arrays: Iterable[Numbers], theta: np.ndarray, queries: Queries, shape: Shape) -> float:
    """Scales the queries in a file, in place, and returns the rounding error."""
    data, errors = np.memmap(file, np.uint8, "r+"), [0.0]
    for array in arrays:
        if not (match := re.fullmatch(queries.names, array.name)):
            continue
        if array.kind not in FLOATS and array.kind not in FACTORS:
            raise Refusal(f"{array.name} is of type {array.kind}, whose factors are not known: choose another")
        of_layer = np.broadcast_to(theta[int(match[1])], shape.heads)
        for view in array.views(data):
            values = np.moveaxis(view, queries.axis, 0)
            head = queries.head_of(len(values), shape)
            factor = np.where(head == NOT_QUERIES, 1.0, 1 / of_layer[head])
            errors.append(_scale(values, factor, queries.offset, array.name))
    data.flush()
    return max(errors)


def _scale(values: np.ndarray, factor: Float[np.ndarray, " features"], offset: float, name: str) -> float:
    """Multiplies features by their factors, in place, and returns the largest relative error of the rounding."""
    changed = factor != 1
    along = factor[changed].reshape(-1, *[1] * (values.ndim - 1))
    exact = (values[changed].astype(np.float64) + offset) * along - offset
    with np.errstate(over="ignore"):  # which is refused here
        rounded = exact.astype(values.dtype)
    if not np.isfinite(rounded.astype(np.float64)).all():
        raise Refusal(f"{name} would have numbers beyond the type {values.dtype}: choose temperatures nearer to 1")
    values[changed] = rounded
    used = exact != 0
    relative = np.abs(rounded.astype(np.float64) - exact)[used] / np.abs(exact[used])
    return float(relative.max(initial=0.0))
