"""Bakes temperatures into a checkpoint: plain softmax of the new model is softmax(z / θ) of the old, in any program.

Only the numbers that make the queries change, in a copy; all other bytes are those of the old files.
"""

import fnmatch
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from softmax_jax.experiment.language_models.directory import weight_files
from softmax_jax.experiment.language_models.gguf_header import read_header
from softmax_jax.experiment.language_models.gguf_model import blocks_of
from softmax_jax.experiment.language_models.keys import LARGEST_OBJECT, LARGEST_WEIGHTS, read_object, unreadable
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
OTHER_WEIGHTS = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx*", "*.ot", ".git"),
    *("*.tflite", "*.nemo", f"*{PARTIAL}"),
)
"""Files that may hold the old weights once more. They are not copied, unless the model is read from them."""


class FileArray(NamedTuple):
    """An array of a file, and where its bytes lie."""

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

    Example:
        >>> theta = np.full((30, 9), 0.9)  # 30 layers of 9 heads
        >>> bake("SmolLM2-135M", theta, "SmolLM2-135M-sharper")  # doctest: +SKIP

    Source: Nikitina et al., "HeadScale", arXiv 2404.12224, has the factor as code of its own.
    """
    source, output, theta = Path(source), Path(output), np.asarray(theta, np.float64)
    plan = find_queries(source)
    _check_theta(theta, plan, source)
    record_file = output.with_name(f"{output.name}.{BAKED}") if source.is_file() else output / BAKED
    for path in (output, record_file):
        if exists(path):
            raise Refusal(f"{path} is there already: name a new one")
    make_directory(output.parent)
    partial = output.with_name(f".{output.name}{PARTIAL}")
    try:
        copies = _copy(source, partial, plan.files)
        error = max(_scale_file(copies[file], arrays, theta, plan) for file, arrays in plan.files.items())
        record = {
            "theta": theta.tolist(),
            "source": {file.name: sha256_of(file, LARGEST_WEIGHTS) for file in plan.files},
            "rounding_error": error,
            "versions": versions(),
            **(provenance or {}),
        }
        write_json(partial / BAKED if partial.is_dir() else record_file, record)
        partial.rename(output)
    except OSError as problem:
        raise not_written(output, problem) from problem
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
    return error


class Plan(NamedTuple):
    """The numbers that baking changes in the files of a model."""

    queries: Queries
    shape: Shape
    files: dict[Path, list[FileArray]]
    """The arrays that make the queries, by the file that holds them; files of weights without such, too."""


def find_queries(source: Path) -> Plan:
    """Returns what baking would change in a model, of which it reads no more than headers.

    Raises Refusal for a model in which θ is no factor of the queries, and for files that are damaged or not whole.
    """
    queries, shape, files = (_of_directory if source.is_dir() else _of_gguf)(source)
    query_arrays = {
        file: [array for array in arrays if queries.layer_of(array.name) is not None] for file, arrays in files
    }
    for array in (array for arrays in query_arrays.values() for array in arrays):
        if array.kind not in FLOATS and array.kind not in FACTORS:
            raise Refusal(
                f"{source}: {array.name} is of type {array.kind}, whose factors are not known: choose another"
            )
    layers = {queries.layer_of(array.name) for arrays in query_arrays.values() for array in arrays}
    if layers != set(range(shape.layers)):
        raise Refusal(
            f"{source} has queries of {len(layers)} layers and tells of {shape.layers}: it is not whole, or names them "
            "in another way; download all of it"
        )
    return Plan(queries, shape, query_arrays)


def _of_directory(source: Path) -> tuple[Queries, Shape, list[tuple[Path, list[FileArray]]]]:
    queries, shape = queries_of(read_object(source / "config.json"), source)
    return queries, shape, [(file, list(_safetensors(file))) for file in weight_files(source)]


def _of_gguf(source: Path) -> tuple[Queries, Shape, list[tuple[Path, list[FileArray]]]]:
    header = read_header(source)
    if header.metadata.get("split.count", 0) > 1:
        raise Refusal(f"{source} is one of {header.metadata['split.count']} parts: join them with llama-gguf-split")
    queries, shape = queries_in_gguf(header.metadata, source)
    arrays = []
    for name in header.places:
        if queries.layer_of(name) is None:
            continue
        start, end, kind, blocks = blocks_of(header, name, source)
        arrays.append(
            FileArray(name, start, end, kind.name, header.places[name].shape if kind.name in FLOATS else blocks)
        )
    return queries, shape, [(source, arrays)]


def _safetensors(file: Path) -> Iterator[FileArray]:
    """Yields the arrays of a file of safetensors: a length, a header in JSON, and bytes."""
    with opened(file, LARGEST_WEIGHTS) as header:
        length = int.from_bytes(header.read(8), "little")
        text = header.read(min(length, LARGEST_OBJECT))
    size, start = file.stat().st_size, 8 + length
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                (first, last), kind, shape = entry["data_offsets"], entry["dtype"], tuple(entry["shape"])
                if not 0 <= first <= last <= size - start:
                    raise ValueError(f"the array {name} ends behind the file")
                if kind in FLOATS and math.prod(shape) * np.dtype(FLOATS[kind]).itemsize != last - first:
                    raise ValueError(f"the array {name} has other bytes than its shape")
                yield FileArray(name, start + first, start + last, kind, shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(file, error) from None


def _check_theta(theta: np.ndarray, plan: Plan, source: Path) -> None:
    """Raises Refusal unless there is a number above 0 for each head, and one number where heads share an array."""
    if (wrong := theta[~(np.isfinite(theta) & (theta > 0))]).size:
        raise Refusal(f"theta has {wrong[0]}: each temperature must be a number above 0")
    layers, heads, _ = plan.shape
    if theta.shape not in ((layers, heads), (layers, 1)):
        raise Refusal(
            f"theta has the shape {theta.shape}, and {source} has {layers} layers of {heads} query heads: give "
            f"({layers}, {heads}) numbers, or ({layers}, 1)"
        )
    if plan.queries.by_layer and (theta != theta[:, :1]).any():
        raise Refusal(
            f"{source} normalises its queries with one weight for all heads of a layer, so only one θ per layer can be "
            f"baked: give ({layers}, 1) numbers"
        )


def _copy(source: Path, partial: Path, weights: Iterable[Path]) -> dict[Path, Path]:
    """Copies a model, without files that may hold its weights once more. Returns the copies of its weights."""
    if source.is_file():
        shutil.copyfile(source, partial)
        return {source: partial}
    kept = {file.name for file in weights}

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in OTHER_WEIGHTS) and name not in kept
        }

    shutil.copytree(source, partial, ignore=left_out, copy_function=shutil.copyfile)  # which copies no mode
    partial.chmod(0o755)
    return {file: partial / file.name for file in weights}


def _scale_file(file: Path, arrays: Iterable[FileArray], theta: np.ndarray, plan: Plan) -> float:
    """Scales the queries in a file, in place, and returns the rounding error."""
    data, errors = np.memmap(file, np.uint8, "r+"), [0.0]
    for array in arrays:
        by_head = np.broadcast_to(theta[plan.queries.layer_of(array.name)], plan.shape.heads)
        for view in array.views(data):
            values = np.moveaxis(view, plan.queries.axis, 0)
            head = plan.queries.head_of(len(values), plan.shape)
            factor = np.where(head == NOT_QUERIES, 1.0, 1 / by_head[head])
            errors.append(_scale(values, factor, plan.queries.offset, array.name))
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
