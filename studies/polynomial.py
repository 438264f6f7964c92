"""Which model was the published polynomial fitted to? Refits by the true item's weight to the models at hand.

Rows whose true item does not get the largest weight; for each the inverse temperature at which it gets most; least
squares in the row's entropy. One pass over the sets gives the logits, and each row its β by bisection.

    python -m studies.polynomial --sets 256
    python -m studies.ablation --groups precision --seeds 4
    python -m studies.polynomial --sets 256 --recipes runs/ablate
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import altair as alt
import numpy as np
import polars as pl
from jaxtyping import Array, Key

from softmax_jax import temperature
from softmax_jax.experiment.commands.parse import UnlessGiven
from softmax_jax.experiment.measures.one_set import attended
from softmax_jax.experiment.measures.over_sets import models_of, on_every_set, set_by_set
from softmax_jax.experiment.measures.refit import beta_of_true_item
from softmax_jax.experiment.measures.runs import FITS
from softmax_jax.experiment.measures.sets import Draw, key_of, set_keys
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.charts import palette
from softmax_jax.experiment.report.temperature import PUBLISHED_AT, curve_frame, holds
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import FLOAT32
from softmax_jax.experiment.training.progress import with_progress
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import Rows, TemperatureFit
from studies.common import CHECKPOINTS, RunOptions, load_runs, require_kind, start

PUBLISHED = "published"
DEGREE = 4
CUTS = (20.0, 10.0)
"""Inverse temperatures above which a row is left out, to see how much hangs on such."""
TESTED = ", tested in float32"
DRAWN = ("paper", "paper, tested in float32", "paper, trained in float32", "paper_float32")
NEAR = (1.0, 1.5, 2.0, 2.5)
"""Entropies in nats that the rows of all models reach, at which curves are compared with the published one."""
NAMED, TITLE_AT = (PUBLISHED, "paper", "paper_float32"), 3.0
"""The curves and the entropy in nats that the title of the chart is about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunOptions):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("criteria",)

    checkpoints: tuple[Path, ...] = CHECKPOINTS
    """Directories of runs of max retrieval. What was trained with rounded products is tested in float32 as well."""
    recipes: UnlessGiven[Path | None] = None
    """Directory of the runs of `python -m studies.ablation --groups precision`, for a file of their refits as well."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    """Items per set."""
    sets: int = 1024
    """Sets per seed and length."""


@functools.cache
def best_of_true_item(task: MaxRetrieval, length: int) -> Callable[..., tuple[Array, Array]]:
    """Returns the entropy of the row of a set, and β of the largest weight of its true item."""

    def read_set(models: Any, key: Key[Array, ""], _: Any) -> tuple[Array, Array]:
        batch = task.test_batch(key, length, 1)
        _, rows = attended(functools.partial(task.scores, models[0], batch, None), Normalizer(softmax))
        return weight_entropy(rows.weights)[0], beta_of_true_item(task, batch, rows)[0]

    return read_set


def measure_rows(
    name: str, task: MaxRetrieval, parameters: Parameters, seeds: Sequence[int], lengths: Sequence[int], sets: int
) -> dict[int, Rows]:
    """Returns the rows of the models of a run by length; the task says how they are tested."""
    models = models_of(task, parameters, items=sets * sum(lengths))

    def at(length: int) -> Rows:
        drawn = set_keys(seeds, length, sets, key_of(Draw.FIT))
        compute = best_of_true_item(task, length)
        entropy, target = set_by_set(on_every_set(compute, models, drawn, task.at_once(length)))
        # No loss was searched.
        nothing = np.zeros_like(entropy)
        grid = np.zeros((*entropy.shape, 1), np.float32)
        return Rows(entropy, nothing, nothing > 0, nothing, grid, grid, target)

    return dict(zip(lengths, with_progress(map(at, lengths), lengths, name)))


def measure_recipes(directory: Path, lengths: Sequence[int], sets: int) -> dict[str, dict[int, Rows]]:
    """Returns the rows of the finished runs in a directory by precision and by what is rounded.

    Raises Refusal for a directory without one.
    """
    runs = [(path, *load_checkpoint(path)) for path in sorted(directory.glob("*")) if (path / "config.json").exists()]
    if not runs:
        raise Refusal(f"--recipes is {directory}: it must hold runs of studies.ablation --groups precision")
    rows_by_recipe = {}
    for path, config, parameters in runs:
        task = require_kind(config.task, MaxRetrieval)
        rate = " at a constant rate" if "constant" in config.schedule else ""
        name = f"{task.matmul}{'' if task.matmul == FLOAT32 else f', {task.rounded}'}{rate}"
        rows_by_recipe[name] = measure_rows(path.name, task, parameters, config.all_seeds, lengths, sets)
    return dict(sorted(rows_by_recipe.items()))


def fitted(rows: Mapping[str, tuple[Mapping[int, Rows], int]]) -> dict[str, TemperatureFit]:
    """Returns by name the fit to rows by a polynomial of a degree, but for those of too few rows for that."""
    fits = {}
    for name, (by_length, degree) in rows.items():
        used = sum(temperature.have_a_say(length_rows, "target").sum() for length_rows in by_length.values())
        if used >= temperature.POINTS_PER_COEFFICIENT * (degree + 1):
            seeds = range(len(next(iter(by_length.values())).entropy))
            fits[name] = temperature.fit(by_length, by_length, seeds=seeds, criterion="target", degree=degree)
    return fits


def criteria_table(frame: pl.DataFrame) -> str:
    """Returns how far each model's refit lies from the published curve, by the criterion of the refit.

    Root mean square difference in β over `NEAR`, and at how many of these entropies the band holds the published β,
    for models that are tested in the precision of their training. By loss the fits are those that were shipped beside
    the models; by the true item they are the rows of `frame`.
    """
    rows = []
    shown = frame.filter(~pl.col("model").str.ends_with(TESTED))
    for (name,), by_target in shown.group_by("model", maintain_order=True):
        file = SHIPPED / str(name) / FITS[temperature.ALL_LENGTHS]
        by_loss = curve_frame({"loss": TemperatureFit.load(file)} if file.exists() else {})
        rows.append([str(name), nearness(by_target), nearness(by_loss)])
    return tables.markdown_table(["model", "by the true item", "by loss"], rows)


def nearness(curve: pl.DataFrame) -> str:
    """Says how far a curve lies from the published one over `NEAR`, and at how many of them its band holds it."""
    near = curve.filter(pl.col("entropy").is_in(NEAR)).select("entropy", "beta", "low", "high").rows()
    if not near:
        return "–"
    apart = np.sqrt(np.mean([(beta - PUBLISHED_AT[h]) ** 2 for h, beta, *_ in near]))
    held = sum(holds(h, low, high) for h, _, low, high in near if low is not None)
    return f"{apart:.2f} ({held} of {len(near)})"


def used_frame(rows: Mapping[str, Mapping[int, Rows]]) -> pl.DataFrame:
    """Returns by model and length how many rows have a say, and how many there are."""
    counts = [
        (name, n, int(temperature.have_a_say(length_rows, "target").sum()), length_rows.entropy.size)
        for name, by_length in rows.items()
        for n, length_rows in by_length.items()
    ]
    return pl.DataFrame(counts, ["model", "n", "used", "rows"], orient="row")


def variants(rows: Mapping[int, Rows]) -> dict[str, tuple[Mapping[int, Rows], int]]:
    """Returns rows and degrees of fits that leave rows out, take fewer lengths, or have another degree."""
    longest = max(rows)
    fits: dict[str, tuple[Mapping[int, Rows], int]] = {"as above": (rows, DEGREE)}
    for cut in CUTS:
        below = {
            n: length_rows._replace(target=np.where(length_rows.target < cut, length_rows.target, np.nan))
            for n, length_rows in rows.items()
        }
        fits[f"β < {cut:g}"] = below, DEGREE
    fits[f"up to {longest // 16:,} items"] = (
        {n: length_rows for n, length_rows in rows.items() if n <= longest // 16},
        DEGREE,
    )
    fits["from 64 items"] = {n: length_rows for n, length_rows in rows.items() if n >= 64}, DEGREE
    return fits | {f"degree {degree}": (rows, degree) for degree in (3, 5, 6)}


def sensitivity_frame(rows: Mapping[str, Mapping[int, Rows]]) -> pl.DataFrame:
    """Returns the curves of the `variants` of each model's fit."""
    frames = []
    for name, by_length in rows.items():
        curves = curve_frame(fitted(variants(by_length))).rename({"model": "variant"})
        frames.append(curves.select(pl.lit(name).alias("model"), pl.all()))
    return pl.concat(frames)


def coefficient_frame(fits: Mapping[str, TemperatureFit]) -> pl.DataFrame:
    """Returns the coefficients of each model by power, with their intervals."""
    rows = [
        (name, len(fit.coefficients) - 1 - place, coefficient, *interval)
        for name, fit in fits.items()
        if fit.intervals
        for place, (coefficient, interval) in enumerate(zip(fit.coefficients, fit.intervals))
    ]
    return pl.DataFrame(rows, ["model", "power", "coefficient", "low", "high"], orient="row")


def curve_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws the published curve, ours, and those of float32, with their bands."""
    published = [(PUBLISHED, entropy, beta, None, None) for entropy, beta in PUBLISHED_AT.items()]
    ours = frame.filter(pl.col("model").is_in(DRAWN))
    drawn = pl.concat([pl.DataFrame(published, ours.schema, orient="row"), ours])
    drawn = drawn.rename({"model": "normalizer", "beta": "value"})
    colours = {PUBLISHED: palette(["adaptive"])["adaptive"]} | palette(DRAWN)
    x = alt.X("entropy:Q", title="entropy H of the row under softmax (nats)", scale=alt.Scale(zero=False))
    y = charts.log_axis("inverse temperature β (log scale)", drawn["value"].to_list(), 2.0)
    at = dict(drawn.filter(pl.col("entropy") == TITLE_AT).select("normalizer", "value").rows())
    title = charts.chart_title(
        f"β at {TITLE_AT:g} nats: " + ", ".join(f"{at[name]:.3g} {name}" for name in NAMED if name in at),
        "β that gives the true item most weight, in rows where another has more;",
        "bands: 95 % over ten seeds",
    )
    return charts.named_lines(drawn, x, y, title, colours=colours, width=290)


def study(arguments: Arguments) -> None:
    """Measures, fits, draws, writes."""
    runs = load_runs(arguments.checkpoints, MaxRetrieval)
    recipe_rows = measure_recipes(arguments.recipes, arguments.lengths, arguments.sets) if arguments.recipes else {}
    rows: dict[str, dict[int, Rows]] = {}
    for run in runs:
        tested = {run.name: run.task}
        if run.task.matmul != FLOAT32:
            tested[run.name + TESTED] = dataclasses.replace(run.task, matmul=FLOAT32)
        for name, as_tested in tested.items():
            rows[name] = measure_rows(name, as_tested, run.parameters, run.seeds, arguments.lengths, arguments.sets)
    fits = fitted({name: (by_length, DEGREE) for name, by_length in rows.items()})
    frames = {"curves": curve_frame(fits), "sensitivity": sensitivity_frame(rows)}
    frames |= {"used": used_frame(rows), "coefficients": coefficient_frame(fits)}
    written = {"criteria": criteria_table(frames["curves"])}
    if recipe_rows:
        frames["recipes_used"] = used_frame(recipe_rows)
        frames["recipes"] = curve_frame(fitted({name: (by_length, DEGREE) for name, by_length in recipe_rows.items()}))
    arguments.write("polynomial", frames, {"polynomial": curve_chart(frames["curves"])}, written)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
