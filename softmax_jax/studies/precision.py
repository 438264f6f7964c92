r"""What rounded products leave of max retrieval: the best that any model can answer, beside what models do answer.

A product that reads ρ rounded to a spacing δ cannot tell items of one step apart. The answer is then the class of one
of those that share the highest step, and the best guess is the commonest class among them:

$$\text{ceiling} = \operatorname{mean}_{\text{sets}} \; \max_c \frac{\#\{i \text{ at the top}: \kappa_i = c\}}{\#\{i
\text{ at the top}\}}.$$

It is computed on the very sets that models are tested on, with nothing trained and nothing fitted.

    python ablate.py --groups precision --seeds 2 --sets 512 --lengths 16 64 256 1024 4096 16384 --output recipes
    python -m softmax_jax.studies.precision --recipes recipes
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float, Key

from softmax_jax.files import read_bytes, read_json, read_text, write_csv, write_whole
from softmax_jax.measures.evaluation import REFERENCES, evaluate, task_of
from softmax_jax.measures.fits import named_normalizers
from softmax_jax.normalizers.masking import reaches
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies import precision_report as report
from softmax_jax.studies.ablation import BASE, PRECISION
from softmax_jax.tasks import products, published
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

NORMALIZERS = ("softmax", "adaptive", "ssmax", "hardmax")


class Ties(NamedTuple):
    """What rounding leaves of each set."""

    chance: Float[np.ndarray, "*sets"]
    """That the best guess is right: the share of the commonest class among the items that share the largest ρ."""
    tied: Bool[np.ndarray, "*sets"]
    """Whether there is more than one such item."""


def ties(task: MaxRetrieval, precision: str, *, seeds: Sequence[int], n: int, sets: int) -> Ties:
    """Of the sets that an evaluation draws, in its order: arrays over seeds and sets."""
    keys = jax.vmap(lambda seed: task.test_keys(seed, n, sets))(jnp.asarray(seeds, jnp.int32))
    found = _ties(task, precision, n, keys.ravel())
    return Ties(*(np.asarray(values).reshape(keys.shape) for values in found))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _ties(
    task: MaxRetrieval, precision: str, n: int, keys: Key[Array, " sets"]
) -> tuple[Float[Array, " sets"], Bool[Array, " sets"]]:
    def of_set(key: Key[Array, ""]) -> tuple[Array, Array]:
        items = task.draw(key[None], jnp.full(1, n), n).items[0]
        rho = items[:, 0] if precision == products.FLOAT32 else products.rounded_to(precision, items[:, 0])
        at_top = jnp.where(reaches(rho, rho.max())[:, None], items[:, 1:], 0).sum(0)
        return at_top.max() / at_top.sum(), at_top.sum() > 1

    return jax.lax.map(of_set, keys, batch_size=task.at_once(n))


def ceilings(
    task: MaxRetrieval, precisions: Sequence[str], *, seeds: Sequence[int], lengths: Sequence[int], sets: int
) -> pl.DataFrame:
    """By precision, n and seed in percent of sets: the `ceiling`, its standard `deviation` by chance, and those `tied`.

    The best guesser of all is right in each set by chance, so it may exceed the ceiling by a few deviations.
    """
    rows = []
    for precision in precisions:
        for n in lengths:
            chance, tied = ties(task, precision, seeds=seeds, n=n, sets=sets)
            deviation = 100 * np.sqrt((chance * (1 - chance)).sum(1)) / sets
            of_seeds = zip(seeds, 100 * chance.mean(1), deviation, 100 * tied.mean(1))
            rows += [(precision, n, *map(float, of_seed)) for of_seed in of_seeds]
    columns = {"precision": pl.String, "n": pl.Int64, "seed": pl.Int64}
    columns |= dict.fromkeys(("ceiling", "deviation", "tied"), pl.Float64)
    return pl.DataFrame(rows, columns, orient="row")


def accuracies(checkpoint: Path, lengths: Sequence[int], sets: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Accuracy of a run and errors in sets that rounding leaves decidable, in percent of sets; and its ceilings."""
    config, parameters = load_checkpoint(checkpoint)
    task, seeds = task_of(parameters, config.task), config.all_seeds
    named = named_normalizers(NORMALIZERS, checkpoint, parameters)
    frames = []
    for measured in evaluate(
        parameters, named, seeds=seeds, lengths=lengths, sets=sets, measures=("accuracy",), task=task
    ):
        tied = ties(task, task.matmul, seeds=seeds, n=measured.n, sets=sets).tied
        wrong = 100 - measured.values["accuracy"]
        untied = np.where(tied[..., None], 0, wrong).mean(1).T.ravel()
        frames.append(measured.frame().with_columns(wrong_untied=pl.Series(untied, dtype=pl.Float64)))
    return pl.concat(frames), ceilings(task, [task.matmul], seeds=seeds, lengths=lengths, sets=sets)


def of_recipes(directory: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The accuracies that `ablate.py --groups precision` wrote, and the ceilings of their sets.

    Raises ValueError for a directory that holds none.
    """
    try:
        measured = pl.read_csv(read_bytes(directory / "accuracy.csv")).filter(pl.col("group").is_in([BASE, PRECISION]))
        measured = measured.filter(~pl.col("normalizer").is_in(REFERENCES))  # which is told by the exact ρ
        written = read_json(directory / "ablation.json")
    except (OSError, ValueError, pl.exceptions.PolarsError):
        measured, written = pl.DataFrame({"group": []}), {}
    if PRECISION not in measured["group"]:
        raise ValueError(f"--recipes is {directory}: it must hold what `ablate.py --groups {PRECISION}` wrote there")
    recipe = measured.select(pl.format("{}: {}", "group", "recipe")).to_series()
    settings = {name: written["recipes"][name] for name in recipe.unique()}
    rates = {name: "constant" if "constant" in one["schedule"] else "falling" for name, one in settings.items()}
    frame = measured.select(
        precision=recipe.replace_strict({name: one["matmul"] for name, one in settings.items()}),
        rounded=recipe.replace_strict({name: one["rounded"] for name, one in settings.items()}),
        rate=recipe.replace_strict(rates),
        **{name: pl.col(name) for name in ("normalizer", "n", "seed", "accuracy")},
    )
    asked: dict[str, Any] = {"lengths": written["settings"]["lengths"], "sets": written["settings"]["sets"]}
    seeds, precisions = (frame[name].unique(maintain_order=True).to_list() for name in ("seed", "precision"))
    return frame, ceilings(MaxRetrieval(), precisions, seeds=seeds, **asked)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    recipes: Path
    """Directory that `python ablate.py --groups precision` wrote."""
    checkpoint: Path = SHIPPED / "paper"
    """Directory of the run to hold against the published table."""
    lengths: tuple[int, ...] = published.LENGTHS
    """Items per set to test it at."""
    trust_code: command_line.TrustCode = False
    sets: int = 1024
    """Sets per seed and length."""
    output: Path | None = None
    """Directory for the tables and charts; results/precision/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        command_line.each_within("--lengths", self.lengths, 2, 2**20, 1024)
        command_line.within("--sets", self.sets, 1, 2**20, 1024)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(report.TABLES, ""))  # which has a place for each, or raises


def main() -> None:
    """Measures, draws, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with command_line.one_line_errors():
        keep_compiled_programs()
        recipes, of_their_sets = of_recipes(asked.recipes)
        accuracy, ceiling = accuracies(asked.checkpoint, asked.lengths, asked.sets)
        frames = {"accuracy": accuracy, "ceilings": ceiling, "recipes": recipes, "recipe_ceilings": of_their_sets}
        charts = {"published": report.published_chart(accuracy, ceiling)}
        charts |= {"steps": report.steps_chart(recipes, of_their_sets)}
        tables = {"cells": report.cells_table(accuracy, ceiling)}
        tables |= {"precisions": report.recipes_table(recipes, of_their_sets)}
        with command_line.results_of("precision", asked.output) as output:
            for name, frame in frames.items():
                write_csv(output / f"{name}.csv", frame.columns, frame.rows())
            for name, chart in charts.items():
                save_chart(chart, output / name, asked.paper)
            if asked.page:
                write_whole(asked.page, put_into(read_text(asked.page), tables))
            else:
                write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
