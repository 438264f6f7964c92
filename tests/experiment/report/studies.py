"""A small study of two shipped seeds, for tests of what is made from one."""

import functools
from pathlib import Path

import jax
import numpy as np

from softmax_jax.experiment.measures.dispersion import Resolution
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import FITS, named_normalizers
from softmax_jax.experiment.measures.table import MEASURES
from softmax_jax.experiment.report.evaluated import Evaluated
from softmax_jax.experiment.report.study import Study
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.temperature import ALL_LENGTHS, TRAIN_LENGTHS, TemperatureFit
from tests.library.test_temperature import drawn_rows

PAPER = Path(__file__).parents[3] / "checkpoints" / "paper_float32"
LENGTHS = (16, 256)
NORMALIZERS = ("softmax", "adaptive", "hardmax")
RESOLUTION = Resolution(
    np.linspace(0.998, 1, 3),
    np.arange(60.0).reshape(2, 10, 3),
    np.array([200.0, 100.0]),
    np.array([0.04, 0.06]),
    np.zeros((2, 10)),
)


@functools.cache
def small_study() -> tuple[Evaluated, Study]:
    """The run and its study: two seeds, two lengths, three normalizers. What takes long to measure is made up."""
    config, parameters = load_checkpoint(PAPER)
    seeds = config.all_seeds
    named = named_normalizers(NORMALIZERS, PAPER, parameters)
    seeds, parameters = seeds[:2], jax.tree.map(lambda leaf: leaf[:2], parameters)
    options = {"seeds": seeds, "lengths": LENGTHS, "sets": 64, "measures": tuple(MEASURES), "references": (TRUE_ITEM,)}
    measured = list(evaluate(parameters, named, **options))
    searched = {n: drawn_rows(n, seeds=2, rows=6) for n in LENGTHS}
    fits = {name: TemperatureFit.load(PAPER / FITS[name]) for name in (ALL_LENGTHS, TRAIN_LENGTHS)}
    run = Evaluated("paper", config.task, tuple(named), measured, frame_of(measured))
    return run, Study(run, searched, fits, RESOLUTION)
