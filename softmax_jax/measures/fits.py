"""The temperature fits beside a checkpoint, and the normalizers to show by name, those fits among them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS
from softmax_jax.normalizers.fit_file import read_fit
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.training.trainer import Parameters

AS_TRAINED = ", as trained"
"""After the name of the normalizer that a model was trained under, with the numbers that it learned."""
ALL_LENGTHS, TRAIN_LENGTHS = "adaptive_refit", "adaptive_refit_train"
FITS = {ALL_LENGTHS: "temperature.json", TRAIN_LENGTHS: "temperature_train_lengths.json"}
"""The two fits by name, and their files beside a checkpoint: to all lengths, and to those of training alone."""


def fits_directory(checkpoint: Path | str) -> Path:
    """Where the fits of a checkpoint lie: in the run's directory, or beside the msgpack file."""
    checkpoint = Path(checkpoint)
    return checkpoint if checkpoint.is_dir() else checkpoint.parent


def named_normalizers(
    specs: Sequence[str], checkpoint: Path | str, parameters: Parameters, trained_under: str = "softmax"
) -> dict[str, Normalizer | None]:
    """The normalizers to show by name; "all" and the default include the temperature fits beside the checkpoint.

    First the one that the model was trained under, with the numbers that it learned, unless that is softmax.
    Raises as `fits_beside`, which says whether those were made from the checkpoint's parameters, and ValueError for
    the name of a fit that is not there.
    """
    with_fits = tuple(specs) in (DEFAULT_NORMALIZERS, ("all",))
    fits = fits_beside(checkpoint, parameters) if with_fits or not FITS.keys().isdisjoint(specs) else {}
    for name in specs:
        if name in FITS.keys() - fits.keys():
            remedy = f"run fit_temperature.py --checkpoint {checkpoint} --output {fits_directory(checkpoint)}"
            raise ValueError(f"--normalizers has {name}: there is no such fit beside {checkpoint}: {remedy}")
    specs = tuple(METHODS) if tuple(specs) == ("all",) else tuple(specs)
    if with_fits:
        after = specs.index("adaptive") + 1
        specs = (*specs[:after], *fits, *specs[after:])
    trained: dict[str, Normalizer | None] = {} if trained_under == "softmax" else {trained_under + AS_TRAINED: None}
    return trained | {
        spec: normalizer(f"adaptive(fit={str(fits[spec])!r})" if spec in fits else spec) for spec in specs
    }


def fits_beside(checkpoint: Path | str, parameters: Parameters) -> dict[str, Path]:
    """The temperature fits beside a checkpoint, by name.

    Raises ValueError, in one line, for a damaged one and for one that was fitted to other parameters.
    """
    directory = fits_directory(checkpoint)
    paths = {name: directory / file for name, file in FITS.items() if (directory / file).exists()}
    for path in paths.values():
        if read_fit(path)["checkpoint_sha256"] != checkpoint_sha256(parameters):
            raise ValueError(
                f"{path} was fitted to other parameters than those of {checkpoint}: run fit_temperature.py "
                f"--checkpoint {checkpoint} --output {directory}, or move the file and name it, as in "
                f"adaptive(fit=elsewhere/{path.name})"
            )
    return paths


def checkpoint_sha256(parameters: Parameters) -> str:
    """A digest of names, shapes and numbers, the same for the same parameters in any file format."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree.leaves_with_path(parameters), key=lambda pair: jax.tree_util.keystr(pair[0])):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
