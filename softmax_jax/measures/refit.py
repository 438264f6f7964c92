"""Refits the adaptive temperature to trained max-retrieval models, beside the best that any temperature could do."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from softmax_jax import temperature
from softmax_jax.measures.evaluation import (
    DEFAULT_NORMALIZERS,
    Row,
    check_parameters,
    evaluate,
    on_fresh_sets,
    set_by_set,
)
from softmax_jax.normalizers.fit_file import read_fit
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.normalizers.scales import EntropyInterpolation
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.max_retrieval import Batch, MaxRetrievalModel
from softmax_jax.temperature import Rows, TemperatureFit
from softmax_jax.training.trainer import Parameters

ALL_LENGTHS, TRAIN_LENGTHS = "adaptive_refit", "adaptive_refit_train"
FITS = {ALL_LENGTHS: "temperature.json", TRAIN_LENGTHS: "temperature_train_lengths.json"}
"""The two fits by name, and their files beside a checkpoint: to all lengths, and to those of training alone."""

SHORT = 16
SHORT_FACTOR = 64
"""Sets of up to `SHORT` items are cheap and few of their rows are flat: they are drawn this many times as often."""


def fits_directory(checkpoint: Path) -> Path:
    """Where the fits of a checkpoint lie: in the run's directory, or beside the msgpack file."""
    return checkpoint if checkpoint.is_dir() else checkpoint.parent


def named_normalizers(specs: Sequence[str], checkpoint: Path, parameters: Parameters) -> dict[str, Normalizer]:
    """The normalizers to show by name; "all" and the default include the temperature fits beside the checkpoint.

    Raises as `fits_beside`, which says whether those were made from the checkpoint's parameters.
    """
    if not specs or isinstance(specs, str):
        raise ValueError(
            f"the normalizers are {specs!r}; they must be a tuple of names, at least one: give ('softmax',)"
        )
    with_fits = tuple(specs) in (DEFAULT_NORMALIZERS, ("all",))
    fits = fits_beside(checkpoint, parameters) if with_fits else {}
    specs = tuple(METHODS) if tuple(specs) == ("all",) else tuple(specs)
    if with_fits:
        after = specs.index("adaptive") + 1
        specs = (*specs[:after], *fits, *specs[after:])
    return {spec: normalizer(f"adaptive(fit={str(fits[spec])!r})" if spec in fits else spec) for spec in specs}


def fits_beside(checkpoint: Path, parameters: Parameters) -> dict[str, Path]:
    """The temperature fits beside a checkpoint, by name.

    Raises ValueError, in one line, for a damaged one and for one that was fitted to other parameters.
    """
    directory = fits_directory(checkpoint)
    paths = {name: directory / file for name, file in FITS.items() if (directory / file).exists()}
    for path in paths.values():
        if read_fit(path)["checkpoint_sha256"] != checkpoint_sha256(parameters):
            raise ValueError(
                f"{path} was fitted to other parameters than those of {checkpoint}: run fit_temperature.py "
                f"--checkpoint {checkpoint}, or move the file and name it, as in adaptive(fit=elsewhere/{path.name})"
            )
    return paths


def sets_of(items: int, sets: int) -> int:
    """Sets to draw at a length."""
    return sets * SHORT_FACTOR if items <= SHORT else sets


def checkpoint_sha256(parameters: Parameters) -> str:
    """A digest of names, shapes and numbers, the same for the same parameters in any file format."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree.leaves_with_path(parameters), key=lambda pair: jax.tree_util.keystr(pair[0])):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def search_model(model: MaxRetrievalModel, batch: Batch) -> Rows:
    """The search on one batch of sets: the loss is the cross-entropy of the answer, an error is another answer."""
    hidden, logits = model.encode(batch.items, batch.query)

    def scores(attended: Float[Array, "sets width"]) -> Float[Array, "sets classes"]:
        return model.read(attended[:, None], jnp.ones((len(attended), 1), attended.dtype))

    return temperature.search(
        logits,
        hidden,
        lambda attended: optax.softmax_cross_entropy_with_integer_labels(scores(attended), batch.answer),
        error=lambda attended: (scores(attended).argmax(-1) != batch.answer).astype(attended.dtype),
        where=batch.mask,
    )


def search_lengths(
    parameters: Parameters, *, seeds: Sequence[int], lengths: Sequence[int], sets: int, keys: Sequence[Key[Array, ""]]
) -> Iterator[list[Rows]]:
    """Yields, length by length, the numpy rows of shape (seeds, sets) for the sets that each key draws."""
    check_parameters(parameters, seeds)

    def rows(items: int) -> list[Rows]:
        drawn = sets_of(items, sets)
        return [
            set_by_set(on_fresh_sets(search_model, parameters, key=key, seeds=seeds, items=items, sets=drawn))
            for key in keys
        ]

    yield from two_at_a_time(rows, lengths)


def isotonic_normalizer(rows: Mapping[int, Rows]) -> Normalizer:
    """Softmax at the best temperature that any function of the entropy, rising with it, gives."""
    by_copies = temperature.points(temperature.join(rows.values()), "bins")
    everyone = np.ones(len(next(iter(rows.values())).entropy))
    rising = temperature.isotonic_points(by_copies(everyone))
    knots = (jnp.asarray(numbers, jnp.float32) for numbers in (rising.entropy, rising.beta))
    return Normalizer(softmax, EntropyInterpolation(*knots))


def compare(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    rows: Mapping[int, Rows],
    fresh_rows: Mapping[int, Rows],
    *,
    seeds: Sequence[int],
    sets: int,
    key: Key[Array, ""],
) -> Iterator[list[Row]]:
    """Yields, length by length, evaluation rows of every normalizer and of the oracles on the sets that `key` draws.

    `rows` chose the oracles' temperatures and come from other sets; `fresh_rows` are those of `key`.
    """
    for lengths in ([n for n in rows if n <= SHORT], [n for n in rows if n > SHORT]):
        if not lengths:
            continue
        drawn = sets_of(max(lengths), sets)
        measured = evaluate(parameters, normalizers, seeds=seeds, lengths=lengths, sets=drawn, key=key)
        for n, batch in zip(lengths, measured):
            yield batch + oracle_rows(n, rows[n], fresh_rows[n], seeds)


BEST_FOR_LENGTH = "best θ for each n"
BEST_FOR_SET = "best θ for each set"


def oracle_rows(n: int, rows: Rows, fresh: Rows, seeds: Sequence[int]) -> list[Row]:
    """What temperatures reach that know more than a row's entropy: its length, or even its answer."""
    smooth = temperature.smooth_errors(rows.errors.mean((0, 1)))
    for_loss, for_accuracy = int(rows.losses.mean((0, 1)).argmin()), int(smooth.argmin())
    found = []
    for index, seed in enumerate(seeds):
        losses, errors = fresh.losses[index], fresh.errors[index]
        values = {
            BEST_FOR_LENGTH: (errors[:, for_accuracy], losses[:, for_loss]),
            BEST_FOR_SET: (errors.min(-1), losses.min(-1)),
        }
        for name, (error, loss) in values.items():
            accuracy = 100 * float(1 - error.mean())
            found.append(Row(name, n, seed, accuracy, float(loss.mean()), float("nan"), float("nan")))
    return found


def fitted(fit: TemperatureFit) -> Normalizer:
    """Softmax at the temperature of a fit."""
    return Normalizer(softmax, fit.scale)
