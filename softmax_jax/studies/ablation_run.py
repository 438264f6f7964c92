"""Trains and measures the recipes of an ablation, and writes what came of them."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from softmax_jax.files import read_json, read_text, versions, write_csv, write_json, write_whole
from softmax_jax.measures.evaluation import REFERENCES, evaluate, frame_of, task_of
from softmax_jax.measures.fits import checkpoint_sha256
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report.drawing import Paper, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime.command_line import plain_console
from softmax_jax.studies import ablation_report as report
from softmax_jax.studies.ablation import ACCURACIES, BASE, PAIRS, SOFT_TO_SHARP, TEMPERATURES, Outcome, Recipe, losses
from softmax_jax.studies.shootout import directory_name
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.config import Config, settings_of
from softmax_jax.training.run import NotFiniteError, run
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

TABLES = ("losses", "pairs")
"""Marks of the page."""


def outcomes(
    recipes: Sequence[Recipe], presets: Mapping[str, Config], lengths: Sequence[int], sets: int, runs: Path
) -> list[Outcome]:
    """Trains what is not trained yet, and measures it and the shipped models of max retrieval of these presets."""
    console = plain_console()
    checkpoints = []
    for index, recipe in enumerate(recipes):
        console.print(f"recipe {index + 1} of {len(recipes)}: {recipe.group}: {recipe.name}", soft_wrap=True)
        try:
            run(recipe.config, workdir(runs, recipe), console)
            checkpoints.append((recipe, workdir(runs, recipe)))
        except NotFiniteError as error:
            console.print(f"left out: {error}", soft_wrap=True, markup=False)
    of_task = {name: config for name, config in presets.items() if config.task.name == MaxRetrieval.name}
    shipped = [Recipe("as shipped", name, config) for name, config in of_task.items() if (SHIPPED / name).is_dir()]
    checkpoints += [(recipe, SHIPPED / recipe.name) for recipe in shipped]
    return [measured(recipe, path, lengths, sets, workdir(runs, recipe), console) for recipe, path in checkpoints]


def workdir(runs: Path, recipe: Recipe) -> Path:
    """Where a recipe is trained, and where its accuracies are kept."""
    return runs / directory_name(f"{recipe.group} {recipe.name}")


def measured(
    recipe: Recipe, checkpoint: Path, lengths: Sequence[int], sets: int, kept_in: Path, console: Console
) -> Outcome:
    """The accuracies of a recipe; from its file where it was measured before in the same way."""
    config, parameters = load_checkpoint(checkpoint)
    names = (*METHODS, *TEMPERATURES) if recipe.group in (BASE, PAIRS) else (*SOFT_TO_SHARP, "adaptive")
    named = {name: normalizer(name) for name in names}
    settings = {"lengths": list(lengths), "sets": sets, "normalizers": list(named)}
    settings |= {"checkpoint_sha256": checkpoint_sha256(parameters), "versions": versions()}
    path = kept_in / "accuracies.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        kept = read_json(path)
        if kept["settings"] == settings:
            return Outcome(recipe, pl.DataFrame(kept["rows"], ACCURACIES, orient="row"))
    console.print(f"measuring {recipe.group}: {recipe.name}", soft_wrap=True)
    options: dict[str, Any] = {"seeds": config.all_seeds, "measures": ("accuracy",), "references": tuple(REFERENCES)}
    options["task"] = task_of(parameters, config.task)
    frame = frame_of(evaluate(parameters, named, lengths=lengths, sets=sets, **options)).sort(
        "n", "seed", maintain_order=True
    )
    write_json(path, {"settings": settings, "rows": frame.rows()})
    return Outcome(recipe, frame)


def write(
    outcomes: Sequence[Outcome],
    options: Mapping[str, Any],
    output: Path,
    page: Path | None,
    paper: Paper | None = None,
) -> None:
    """Writes the tables, the charts, and the page if one is named."""
    accuracies = pl.concat(of_recipe(recipe, frame) for recipe, frame in outcomes)
    lost = pl.concat(of_recipe(recipe, losses(frame)) for recipe, frame in outcomes)
    for name, frame in (("accuracy", accuracies), ("losses", lost)):
        write_csv(output / f"{name}.csv", frame.columns, frame.rows())
    described = {f"{group}: {name}": settings_of(config) for (group, name, config), _ in outcomes}
    write_json(output / "ablation.json", {"settings": dict(options), "recipes": described, "versions": versions()})
    lengths = options["lengths"]
    charts = {"losses": report.losses_chart(lost)}
    charts |= {f"pairs_{n}": chart for n in lengths if (chart := report.pairs_chart(accuracies, n))}
    tables = report.losses_table(lost), report.pairs_table(accuracies, max(lengths))
    for name, chart in charts.items():
        save_chart(chart, output / name, paper)
    write_whole(output / "ablation.md", "\n\n".join(tables) + "\n")
    if page:
        write_whole(page, put_into(read_text(page), dict(zip(TABLES, tables))))


def of_recipe(recipe: Recipe, frame: pl.DataFrame) -> pl.DataFrame:
    """A frame of one recipe as a part of that of all: with its group and name, and the normalizer of its training."""
    group, name, config = recipe
    return frame.select(
        pl.lit(group).alias("group"), pl.lit(name).alias("recipe"), pl.lit(config.normalizer).alias("trained"), pl.all()
    )
