"""Which part of the recipe decides where accuracy is lost? Recipes that differ from one base in one thing each.

    python -m studies.ablation

Takes less than 76 minutes on 2 cores.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import altair as alt
import polars as pl
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import UnlessGiven, each_within, within
from softmax_jax.experiment.commands.shootout import directory_name
from softmax_jax.experiment.configs import load_preset, preset_summaries
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.references import REFERENCES, TRUE_ITEM, TRUE_KEY
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.charts import BY_CAUSE
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import LONGEST_WHOLE
from softmax_jax.experiment.training.config import changed, settings_of
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.files import versions
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import NotFiniteError
from softmax_jax.temperature import checkpoint_sha256
from studies.common import (
    SOFT_TO_SHARP,
    Options,
    best_of_others,
    kept,
    require_kind,
    start,
)
from studies.recipes import BASE, PRECISION, Recipe, recipes, shipped

LOSSES = ("accuracy", "dispersion", "key", "both", "value")
SHOWN = (BASE, "λ = 0.001", "constant 0.001", "paper", "paper_float32")
"""The recipes that the table of the page shows; losses.csv has all."""
ACCURACIES = {"normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("losses",)

    preset: str = "frontier"
    """The preset whose recipe is the base."""
    steps: int = 20_000
    """Training steps of the base; fewer than the preset's, as there are many runs."""
    batch: int = 32
    """Sets in a batch of the base. As many steps of small batches reach further than fewer of large ones."""
    seeds: int = 4
    """Models per recipe, at least two."""
    groups: UnlessGiven[tuple[str, ...]] = ()
    """What to vary, as in `width steps`; everything but `precision` by default, which has a study of its own."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Items per set to test at."""
    sets: int = 256
    """Sets per seed and length."""
    workdir: Path = Path("runs") / "ablate"
    """Directory for the runs, which are continued where they were stopped; finished ones are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("--preset", self.preset, preset_summaries())
        within("--steps", self.steps, 16, 2**28, 20_000)  # an eighth of which some recipes train
        within("--batch", self.batch, 4, 2**20, 32)  # of which some take a quarter
        within("--seeds", self.seeds, 2, 2**10, 4)  # the best temperature of one is that of the others
        within("--sets", self.sets, 1, 2**20, 256)
        each_within("--lengths", self.lengths, 2, LONGEST_WHOLE, 1024)
        for group in self.groups:
            one_of("--groups", group, {recipe.group for recipe in self.recipes()})
        check_directory("--workdir", self.workdir)

    def recipes(self) -> list[Recipe]:
        """Returns the base and all that can be varied."""
        base = load_preset(self.preset)
        return recipes(changed(base, steps=self.steps, batch=self.batch, seeds=self.seeds))

    def chosen(self) -> list[Recipe]:
        """Returns the base and what is varied."""
        recipes = self.recipes()
        groups = self.groups or {recipe.group for recipe in recipes} - {PRECISION}
        return [recipe for recipe in recipes if recipe.group in (BASE, *groups)]


def measured(recipe: Recipe, checkpoint: Path, kept_in: Path, arguments: Arguments, console: Console) -> pl.DataFrame:
    """Returns the accuracy of a recipe by normalizer or reference, n and seed; measures it if that was not done yet."""
    config, parameters = load_checkpoint(checkpoint)
    names = (*SOFT_TO_SHARP, "adaptive")
    settings = {"lengths": list(arguments.lengths), "sets": arguments.sets, "normalizers": list(names)}
    settings |= {"checkpoint_sha256": checkpoint_sha256(parameters), "versions": versions()}

    def measure() -> list[tuple[Any, ...]]:
        console.print(f"measuring {recipe.group}: {recipe.name}", soft_wrap=True)
        named = {name: normalizer(name) for name in names}
        options: dict[str, Any] = {"measures": ("accuracy",), "references": tuple(REFERENCES)}
        options |= {"seeds": config.all_seeds, "lengths": arguments.lengths, "sets": arguments.sets}
        frame = frame_of(evaluate(parameters, named, task=require_kind(config.task, MaxRetrieval), **options))
        return frame.sort("n", "seed", maintain_order=True).rows()

    return pl.DataFrame(kept(kept_in / "accuracies.json", settings, measure), ACCURACIES, orient="row")


def losses(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns where the accuracy of softmax goes, for each length and seed, in percent of sets; five add up to 100.

    `dispersion` is regained by the best constant temperature alone, `key` by a key alone that gives the true item the
    largest logit of its row, `both` by the two together and by neither alone, `value` by no weights at all. A share
    may be negative by chance, and `both` where either remedy would do. The temperature of a seed is the `best` of the
    other seeds, so nothing is chosen on the sets that it is tested on. Needs two seeds.
    """
    wide = frame.pivot("normalizer", index=["n", "seed"], values="accuracy").sort("n", "seed")
    rows = []
    for (n,), at_length in wide.group_by("n", maintain_order=True):
        sharpened = at_length.select(SOFT_TO_SHARP).to_numpy()
        for temperatures, best, accuracies in zip(sharpened, best_of_others(sharpened), at_length.to_dicts()):
            softmax, true_item = accuracies["softmax"], accuracies[TRUE_ITEM]
            dispersion, key = temperatures[best] - softmax, accuracies[TRUE_KEY] - softmax
            both = true_item - softmax - dispersion - key
            rows.append((n, accuracies["seed"], softmax, dispersion, key, both, 100 - true_item, SOFT_TO_SHARP[best]))
    return pl.DataFrame(rows, ("n", "seed", *LOSSES, "best"), orient="row")


def losses_table(lost: pl.DataFrame) -> str:
    """Returns a table of what softmax answers at the shortest length under a few recipes, and what regains the rest."""
    n = min(lost["n"].to_list())
    by_recipe = lost.filter(pl.col("recipe").is_in(SHOWN), n=n).group_by("recipe", maintain_order=True).agg(LOSSES[:-1])
    rows = [[recipe, str(len(shares[0])), *map(with_interval, shares)] for recipe, *shares in by_recipe.rows()]
    columns = [f"recipe (n = {n:,})", "seeds", "softmax", "sharper rows", "a true key", "only both"]
    return tables.markdown_table(columns, rows)


def losses_chart(lost: pl.DataFrame) -> charts.Chart:
    """Returns a bar of 100 % for each length and recipe: answered right, and what would regain the rest.

    The recipe that answers most of the longest sets comes first. The title is about the base.
    """
    longest = lost["n"].max()
    means = lost.group_by("group", "recipe", "n", maintain_order=True).agg(pl.mean(*LOSSES)).with_columns(label())
    ranked = means.filter(n=longest).sort("accuracy", descending=True, maintain_order=True)["recipe"].to_list()
    accuracy, both = means.filter(n=longest, group=BASE).select("accuracy", "both").row(0)
    shares = means.unpivot(list(BY_CAUSE), index=["recipe", "n"], variable_name="kind", value_name="share")
    order = pl.col("kind").replace_strict(list(BY_CAUSE), range(len(BY_CAUSE)))
    shares = shares.with_columns(pl.col("share").clip(0), order=order)
    colour = charts.colour_by("kind", BY_CAUSE, "accuracy, and sets that are lost to").legend(orient="top")
    bars = alt.Chart(charts.data(shares)).mark_bar(clip=True)
    bars = bars.encode(
        x=alt.X("share:Q", title="% of sets", stack="zero").scale(domain=[0, 100]).axis(values=[0, 50, 100]),
        y=alt.Y("recipe:N", title=None, sort=ranked, axis=alt.Axis(labelLimit=320)),
        color=colour,
        order="order:Q",
    ).properties(width=90, height=alt.Step(18))
    title = charts.chart_title(
        f"At {longest:,} items the base loses {100 - accuracy:.0f} %, {both:.0f} of it to two causes at once",
        "trained on at most 16 items; mean over seeds",
    )
    column = alt.Column("n:O", title=None, header=alt.Header(labelExpr="format(datum.value, ',') + ' items'"))
    return bars.facet(column=column, spacing=10).properties(title=title)


def label() -> pl.Expr:
    """Returns the name of a recipe on an axis."""
    named = (pl.col("group") == BASE) | pl.col("recipe").str.contains(pl.col("group"), literal=True)
    return pl.when(named).then("recipe").otherwise(pl.concat_str("group", "recipe", separator=": ")).alias("recipe")


def train_and_measure(arguments: Arguments) -> tuple[Sequence[Recipe], pl.DataFrame, pl.DataFrame]:
    """Trains and measures what is not done yet; returns the recipes, their accuracies and their losses."""
    console, done = plain_console(), []
    chosen = arguments.chosen()
    for index, recipe in enumerate(chosen):
        console.print(f"recipe {index + 1} of {len(chosen)}: {recipe.group}: {recipe.name}", soft_wrap=True)
        directory = arguments.workdir / directory_name(f"{recipe.group} {recipe.name}")
        try:
            train(recipe.config, directory, console)
            done.append((recipe, directory, directory))
        except NotFiniteError as error:
            console.print(f"left out: {error}", soft_wrap=True)
    done += [
        (
            measured_recipe,
            SHIPPED / measured_recipe.name,
            arguments.workdir / directory_name(f"{measured_recipe.group} {measured_recipe.name}"),
        )
        for measured_recipe in shipped()
    ]
    recipe_frames = [(recipe, measured(recipe, path, kept_in, arguments, console)) for recipe, path, kept_in in done]
    accuracies = pl.concat(recipe.frame(frame) for recipe, frame in recipe_frames)
    return (
        [recipe for recipe, _ in recipe_frames],
        accuracies,
        pl.concat(measured_recipe.frame(losses(frame)) for measured_recipe, frame in recipe_frames),
    )


def study(arguments: Arguments) -> None:
    """Trains, measures, draws, writes."""
    done, accuracies, lost = train_and_measure(arguments)
    tables = {"losses": losses_table(lost)}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    described = {f"{group}: {name}": settings_of(config) for group, name, config in done}
    kept_settings = {"settings": settings, "recipes": described, "versions": versions()}
    frames = {"accuracy": accuracies, "losses": lost}
    arguments.write("ablation", frames, {"losses": losses_chart(lost)}, tables, kept_settings)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
