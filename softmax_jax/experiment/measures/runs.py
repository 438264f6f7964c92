"""Runs to be measured: loaded together, with the normalizers and the lengths to show of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softmax_jax.experiment import program
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.files import typed
from softmax_jax.normalizers.fit_file import read_fit
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import all_names, normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import ALL_LENGTHS, TARGET, TARGET_TRAIN, TRAIN_LENGTHS, checkpoint_sha256

DEFAULT_NORMALIZERS = ("softmax", "adaptive", "ssmax", "hardmax")
AS_TRAINED = ", as trained"
"""After the name of the normalizer that a model was trained under, with the numbers that it learned."""
FITS = {
    ALL_LENGTHS: "temperature.json",
    TRAIN_LENGTHS: "temperature_train_lengths.json",
    TARGET: "temperature_target.json",
    TARGET_TRAIN: "temperature_target_train_lengths.json",
}
"""The temperature fits by name, and their files beside a checkpoint."""
COLUMNS = 6
"""Lengths that a table shows side by side."""
SHORTEST = 16
"""The shortest of a task's test lengths to show unless others are named."""
CALLED = {SHIPPED.resolve() / "paper": "our replication"}
"""Names of runs, where not those of their directories."""


class Loaded(NamedTuple):
    """A run, or one part of its task, with the normalizers to show of it."""

    name: str
    path: Path
    config: Config
    parameters: Parameters
    normalizers: dict[str, Normalizer | None]
    labels: Mapping[str, str] = {}
    """Columns that tell it from the others: `run` where there are several, and that of the part of a task."""


def load_runs(
    paths: Sequence[Path], specs: Sequence[str], fits_by_default: bool = True, **changes: Any
) -> list[Loaded]:
    """Loads runs, with changed settings, before anything is measured, as one may be damaged or missing.

    Every part of a task is a run of its own. Raises ValueError for a run that cannot be loaded, and unless all are of
    one task. The normalizers are those of `named_normalizers`.
    """
    runs = []
    for run_name, path in zip(names_of(paths), paths):
        config, parameters = load_checkpoint(path)
        named = named_normalizers(specs, path, parameters, config.normalizer, fits_by_default)
        config = changed(config, **changes)
        for part, task in config.task.parts().items():
            labels = {"run": run_name} if len(paths) > 1 else {}
            labels |= {task.grouped_by: part} if task.grouped_by else {}
            name = ", ".join(labels.values()) or run_name
            runs.append(Loaded(name, path, dataclasses.replace(config, task=task), parameters, named, labels))
    tasks = list(dict.fromkeys(run.config.task.name for run in runs))
    if len(tasks) > 1:
        raise Refusal(f"the runs are of {' and '.join(tasks)}: they must be of one task, so leave one out")
    return runs


def named_normalizers(
    specs: Sequence[str],
    checkpoint: Path | str,
    parameters: Parameters,
    trained_under: str = BASELINE,
    fits_by_default: bool = True,
) -> dict[str, Normalizer | None]:
    """Returns the normalizers to show by name, first the one that the model was trained under, unless that is softmax.

    Arguments:
        specs: Names, or "all" of them with the fits beside the checkpoint.
        checkpoint: Directory of the run, or a msgpack file.
        parameters: Those of the checkpoint, which its fits must have been made from.
        trained_under: The normalizer of the training; None stands for it, with the numbers that it learned.
        fits_by_default: Whether `DEFAULT_NORMALIZERS` come with the fits, too.

    Raises:
        ValueError: As `fits_beside` does, and for the name of a fit that does not exist.
    """
    with_fits = tuple(specs) == ("all",) or (fits_by_default and tuple(specs) == DEFAULT_NORMALIZERS)
    fits = fits_beside(checkpoint, parameters) if with_fits or not FITS.keys().isdisjoint(specs) else {}
    for name in specs:
        if name in FITS.keys() - fits.keys():
            places = f"--checkpoint {typed(checkpoint)} --output {typed(directory_of(checkpoint))}"
            remedy = f"run {program('fit')} {places}"
            raise Refusal(f"--normalizers has {name}: there is no such fit beside {checkpoint}: {remedy}")
    specs = tuple(all_names()) if tuple(specs) == ("all",) else tuple(specs)
    if with_fits:
        after = specs.index("adaptive") + 1
        specs = (*specs[:after], *fits, *specs[after:])
    trained: dict[str, Normalizer | None] = {} if trained_under == BASELINE else {trained_under + AS_TRAINED: None}
    return trained | {
        spec: normalizer(f"adaptive(fit={str(fits[spec])!r})" if spec in fits else spec) for spec in specs
    }


def fits_beside(checkpoint: Path | str, parameters: Any) -> dict[str, Path]:
    """Returns the files of the temperature fits beside a checkpoint, by name.

    Raises ValueError, in one line, for a damaged one and for one that was fitted to other parameters.
    """
    directory = directory_of(checkpoint)
    paths = {name: directory / file for name, file in FITS.items() if (directory / file).exists()}
    for path in paths.values():
        if read_fit(path)["checkpoint_sha256"] != checkpoint_sha256(parameters):
            raise Refusal(
                f"{path} was fitted to other parameters than those of {checkpoint}: run {program('fit')} "
                f"--checkpoint {typed(checkpoint)} --output {typed(directory)}, or move the file and name it, as in "
                f"adaptive(fit=elsewhere/{path.name})"
            )
    return paths


def directory_of(checkpoint: Path | str) -> Path:
    """Returns where the fits of a checkpoint lie: in the run's directory, or beside the msgpack file."""
    checkpoint = Path(checkpoint)
    return checkpoint if checkpoint.is_dir() else checkpoint.parent


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names for the runs: those of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def lengths_to_show(lengths: Sequence[int], requested: Sequence[int] = (), most: int = 2**20) -> list[int]:
    """Returns at most this many of the lengths, spread evenly by their ratios, from the first to the last.

    Short ones that nobody requested are left out.

    >>> lengths_to_show([2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384], most=6)
    [16, 64, 256, 1024, 4096, 16384]
    """
    lengths = [n for n in lengths if n in requested or n >= SHORTEST] or list(lengths)
    if len(lengths) <= most:
        return lengths
    logs = np.log(lengths)
    nearest = {int(np.abs(logs - place).argmin()) for place in np.linspace(logs[0], logs[-1], most)}
    return [lengths[place] for place in sorted(nearest)]


def numbered(lengths: Sequence[int]) -> list[str]:
    """Returns a name for each length with its place among them.

    >>> numbered([16, 64])
    ['n = 16 (1 of 2)', 'n = 64 (2 of 2)']
    """
    return [f"n = {length} ({place} of {len(lengths)})" for place, length in enumerate(lengths, 1)]


RECIPE = "paper"
"""The preset whose runs are held against the published table."""
FREE = {"seeds", "first_seed", "chunk", "chunks_per_checkpoint"}
"""Settings in which such a run may differ: they change which models are trained, or none."""


def has_published_recipe(config: Config) -> bool:
    """Says whether a run, as it is read, has every setting of the recipe that the published table is compared with."""
    ours, recipe = (settings_of(each) for each in (config, load_preset(RECIPE)))
    return all(ours.get(name) == value for name, value in recipe.items() if name not in FREE)
