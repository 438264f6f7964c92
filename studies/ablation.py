"""Trains recipes that differ from one base in one thing each, and measures where each of them loses accuracy.

python -m studies.ablation
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import UnlessGiven, each_within, within
from softmax_jax.experiment.commands.shootout import directory_name
from softmax_jax.experiment.configs import load_preset, preset_summaries
from softmax_jax.experiment.measures.evaluation import REFERENCES, TRUE_ITEM, TRUE_KEY, evaluate, frame_of
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.charts import BASELINE, BY_CAUSE, reader_name
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import LONGEST_WHOLE, MaxRetrieval
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run import run
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.files import versions
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.refusal import NotFiniteError
from softmax_jax.temperature import checkpoint_sha256
from studies.common import (
    SOFT_TO_SHARP,
    TEMPERATURES,
    Options,
    best_of_others,
    kept,
    max_retrieval_of,
    start,
)

BASE = "base"
PAIRS = "normalizer in training"
PRECISION = "precision"
"""A study of its own, with a page of its own; varied only if asked for."""
LOSSES = ("accuracy", "dispersion", "key", "both", "value")
SHIPPED_MODELS = "as shipped"
UNTRAINED = ("hardmax", "signed_l1")
"""Hardmax gives the key no gradient, and signed_l1 has no exponential to pick with."""
SHOWN = ("λ = 0.001", "constant 0.001", "128 sets", "nearest of 64")
"""The recipes that the table of the page shows besides the base and the shipped models; losses.csv has all."""
ACCURACIES = {"normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64}


class Recipe(NamedTuple):
    """One run of the ablation."""

    group: str
    """What is varied."""
    name: str
    """To what; `BASE` is in every group and named so."""
    config: Config

    def frame(self, of_recipe: pl.DataFrame) -> pl.DataFrame:
        """Returns a frame of this recipe with its group and name, and the normalizer of its training."""
        first = {"group": self.group, "recipe": self.name, "trained": self.config.normalizer}
        return of_recipe.select(*(pl.lit(value).alias(name) for name, value in first.items()), pl.all())


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
        return recipes(changed(base, steps=self.steps, sets=self.batch, seeds=self.seeds))

    def chosen(self) -> list[Recipe]:
        """Returns the base and what is varied."""
        every = self.recipes()
        groups = self.groups or {recipe.group for recipe in every} - {PRECISION}
        return [recipe for recipe in every if recipe.group in (BASE, *groups)]


def recipes(base: Config) -> list[Recipe]:
    """Returns the base, and for each thing that is varied the base with it changed, unless that is the base again.

    Longer training, another width and another batch change the compute, all others leave it nearly alone.
    """
    rate, steps = base.learning_rate, base.steps
    adamw, one_cycle = {"optimizer": "adamw", "l2": 0.0}, {"schedule": "cosine_onecycle_schedule"}
    constant = {"schedule": "constant_schedule", "learning_rate": rate / 3}
    groups: dict[str, dict[str, dict[str, Any]]] = {
        "penalty": {
            **{f"λ = {l2:g}": {"l2": l2} for l2 in (1e-4, 5e-4, 1e-3)},
            **{f"AdamW, decay {d:g}": adamw | {"optimizer_options": {"weight_decay": d}} for d in (1e-4, 1e-2)},
        },
        "schedule": {
            f"constant {rate / 3:g}": constant,
            f"cosine from {rate / 3:g}": constant | {"schedule": "cosine_decay_schedule"},
            **{f"one cycle to {peak:g}": one_cycle | {"learning_rate": peak} for peak in (1 / 3 * rate, 3 * rate)},
        },
        "schedule and penalty": {
            f"constant {rate / 3:g}, λ = 0.001": constant | {"l2": 1e-3},
            f"cosine from {rate / 3:g}, λ = 0.001": constant | {"schedule": "cosine_decay_schedule", "l2": 1e-3},
        },
        "steps": {f"{steps // part:,} steps": {"steps": steps // part} for part in (8, 4, 2)},
        "sets in a batch": {f"{sets} sets": {"sets": sets} for sets in (base.task.sets // 4, 4 * base.task.sets)},
        "width": {f"width {width}": {"width": width} for width in (32, 64, 256)},
        "items in training": {
            "5 to 16 items": {"min_items": 5},
            "2 to 16 items": {"min_items": 2},
            "8 items": {"min_items": 8, "max_items": 8},
            "2 items": {"min_items": 2, "max_items": 2},
        },
        "ties": {f"nearest of {count}": {"nearest_of": count} for count in (4, 16, 64)},
        PRECISION: {
            f"{matmul}, {rounded}{'' if falling else ', constant'}": {"matmul": matmul, "rounded": rounded}
            | ({} if falling else constant)
            for matmul in products.PRECISIONS
            for rounded in (products.PLACES if matmul != products.FLOAT32 else products.PLACES[-1:])
            for falling in (True, False)
        },
        PAIRS: {name: {"normalizer": name} for name in METHODS if name != base.normalizer},
    }
    varied = [
        Recipe(group, name, changed(base, **changes))
        for group, variants in groups.items()
        for name, changes in variants.items()
    ]
    return [Recipe(BASE, BASE, base), *(recipe for recipe in varied if recipe.config != base)]


def shipped() -> list[Recipe]:
    """Returns the recipes of the trained models of max retrieval that come with the repository."""
    presets = {name: load_preset(name) for name in preset_summaries() if (SHIPPED / name).is_dir()}
    return [Recipe(SHIPPED_MODELS, *one) for one in presets.items() if one[1].task.name == MaxRetrieval.name]


def measured(recipe: Recipe, checkpoint: Path, kept_in: Path, asked: Arguments, console: Console) -> pl.DataFrame:
    """Returns the accuracy of a recipe by normalizer or reference, n and seed; measures it if that was not done yet."""
    config, parameters = load_checkpoint(checkpoint)
    names = (*METHODS, *TEMPERATURES) if recipe.group in (BASE, PAIRS) else (*SOFT_TO_SHARP, "adaptive")
    settings = {"lengths": list(asked.lengths), "sets": asked.sets, "normalizers": list(names)}
    settings |= {"checkpoint_sha256": checkpoint_sha256(parameters), "versions": versions()}

    def measure() -> list[tuple[Any, ...]]:
        console.print(f"measuring {recipe.group}: {recipe.name}", soft_wrap=True)
        named = {name: normalizer(name) for name in names}
        options: dict[str, Any] = {"measures": ("accuracy",), "references": tuple(REFERENCES)}
        options |= {"seeds": config.all_seeds, "lengths": asked.lengths, "sets": asked.sets}
        frame = frame_of(evaluate(parameters, named, task=max_retrieval_of(config), **options))
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
        for own, best, one in zip(sharpened, best_of_others(sharpened), at_length.to_dicts()):
            softmax, true_item = one["softmax"], one[TRUE_ITEM]
            dispersion, key = own[best] - softmax, one[TRUE_KEY] - softmax
            both = true_item - softmax - dispersion - key
            rows.append((n, one["seed"], softmax, dispersion, key, both, 100 - true_item, SOFT_TO_SHARP[best]))
    return pl.DataFrame(rows, ("n", "seed", *LOSSES, "best"), orient="row")


def losses_table(lost: pl.DataFrame) -> str:
    """Returns a table of what softmax answers at the shortest length under a few recipes, and what regains the rest."""
    n = min(lost["n"].to_list())
    shown = pl.col("group").is_in([BASE, SHIPPED_MODELS]) | pl.col("recipe").is_in(SHOWN)
    by_recipe = lost.filter(shown, n=n).group_by("recipe", maintain_order=True).agg(LOSSES[:-1])
    rows = [[recipe, *map(with_interval, shares)] for recipe, *shares in by_recipe.rows()]
    return tables.markdown_table([f"recipe (n = {n:,})", "softmax", "sharper rows", "a true key", "only both"], rows)


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


def pair_means(accuracies: pl.DataFrame, n: int) -> dict[tuple[str, str], float]:
    """Returns the mean accuracy at n for each pair of a normalizer in training and one in the test."""
    rows = accuracies.filter(pl.col("group").is_in([BASE, PAIRS]), pl.col("normalizer").is_in(METHODS.keys()), n=n)
    means = rows.group_by("trained", "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    return {(train, test): mean for train, test, mean in means.iter_rows()}


def pairs_chart(accuracies: pl.DataFrame, n: int) -> charts.Chart | None:
    """Returns a heat map of the pairs at one length; nothing if training has been under one normalizer only.

    Trainings and tests below half of the best everywhere are left out. Of several that agree to 0.1 points everywhere
    the first stands for all.
    """
    means = pair_means(accuracies, n)
    frame = pl.DataFrame([(*pair, mean) for pair, mean in means.items()], ["train", "test", "accuracy"], orient="row")
    if frame["train"].n_unique() < 2:
        return None
    floor, sides = max(means.values()) / 2, ("train", "test")
    for side in sides:
        frame = frame.filter(pl.max("accuracy").over(side) >= floor)
    ranges = {test: (min(own), max(own)) for test, own in frame.group_by("test").agg("accuracy").rows()}
    for side in sides:
        alike: dict[tuple[float, ...], list[str]] = {}
        for (name,), of_one in frame.group_by(side, maintain_order=True):
            alike.setdefault(tuple(of_one["accuracy"].round(1)), []).append(str(name))
        shown = {names[0]: names[0] + (f"({len(names)} alike)" if names[1:] else "") for names in alike.values()}
        frame = frame.filter(pl.col(side).is_in(shown.keys())).with_columns(pl.col(side).replace(shown))
    base = alt.Chart(charts.data(frame)).encode(
        x=alt.X("test:N", title="normalizer in the test", sort=None, axis=alt.Axis(labelAngle=-60, labelLimit=200)),
        y=alt.Y("train:N", title="normalizer in training", sort=None, axis=alt.Axis(labelLimit=200)),
    )
    scale = alt.Scale(domain=[10, 100], scheme="viridis")
    cells = base.mark_rect().encode(color=alt.Color("accuracy:Q", scale=scale, legend=None))
    dark = alt.condition("datum.accuracy < 60", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=12).encode(text=alt.Text("accuracy:Q", format=".0f"), color=dark)
    best = max(ranges, key=lambda test: ranges[test][0])
    said = (f"{reader_name(test)} {'{:.0f} to {:.0f}'.format(*ranges[test])} %" for test in ("softmax", best))
    title = charts.chart_title(
        f"By the test at {n:,} items: {', '.join(said)}",
        "accuracy (%), mean over seeds; alike: normalizers that agree to 0.1 points;",
        "left out: what is below half of the best everywhere",
    )
    return alt.layer(cells, text).properties(title=title, width=alt.Step(24), height=alt.Step(19))


def best_of_pairs(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns, by length and normalizer in training, the accuracy under itself and under softmax, and the best one."""
    rows = []
    for n in accuracies["n"].unique().sort():
        means = pair_means(accuracies, n)
        for train in dict.fromkeys(train for train, _ in means):
            of_one = {test: mean for (one, test), mean in means.items() if one == train}
            best = max(of_one, key=lambda test, of_one=of_one: of_one[test])
            rows.append((n, train, of_one.get(train), of_one[BASELINE], of_one[best], best))
    return pl.DataFrame(rows, ("n", "trained", "itself", "softmax", "best", "best_in_test"), orient="row")


def shares_of_variance(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns what training and test explain of the variance of `pair_means`, in percent, by length.

    Rows of the grid are trainings, columns are tests: each explains the variance of its means, and `together` is the
    rest. Trainings that fail and `signed_l1`, under which nothing is answered, are left out.
    """
    rows = []
    for n in accuracies["n"].unique().sort():
        means = pair_means(accuracies, n)
        trained, tested = (list(dict.fromkeys(names)) for names in zip(*means))
        grid = np.array(
            [[means[one, test] for test in tested if test != "signed_l1"] for one in trained if one not in UNTRAINED]
        )
        deviation = grid - grid.mean()
        of_training, of_test = (np.square(deviation.mean(axis)).mean() for axis in (1, 0))
        whole = np.square(deviation).mean()
        rows.append((n, *(100 * float(part / whole) for part in (of_training, of_test, whole - of_training - of_test))))
    return pl.DataFrame(rows, ("n", "training", "test", "together"), orient="row")


def frames_of(asked: Arguments) -> tuple[Sequence[Recipe], pl.DataFrame, pl.DataFrame]:
    """Trains and measures what is not done yet; returns the recipes, their accuracies and their losses."""
    console, done = plain_console(), []
    chosen = asked.chosen()
    for index, recipe in enumerate(chosen):
        console.print(f"recipe {index + 1} of {len(chosen)}: {recipe.group}: {recipe.name}", soft_wrap=True)
        directory = asked.workdir / directory_name(f"{recipe.group} {recipe.name}")
        try:
            run(recipe.config, directory, console)
            done.append((recipe, directory, directory))
        except NotFiniteError as error:
            console.print(f"left out: {error}", soft_wrap=True)
    done += [(one, SHIPPED / one.name, asked.workdir / directory_name(f"{one.group} {one.name}")) for one in shipped()]
    found = [(recipe, measured(recipe, path, kept_in, asked, console)) for recipe, path, kept_in in done]
    accuracies = pl.concat(recipe.frame(frame) for recipe, frame in found)
    return [recipe for recipe, _ in found], accuracies, pl.concat(one.frame(losses(frame)) for one, frame in found)


def study(asked: Arguments) -> None:
    """Trains, measures, draws, writes."""
    done, accuracies, lost = frames_of(asked)
    drawn = {"losses": losses_chart(lost)}
    if chart := pairs_chart(accuracies, sorted(asked.lengths)[len(asked.lengths) // 2]):
        drawn["pairs"] = chart
    tables = {"losses": losses_table(lost)}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()}
    described = {f"{group}: {name}": settings_of(config) for group, name, config in done}
    kept_settings = {"settings": settings, "recipes": described, "versions": versions()}
    frames = {"accuracy": accuracies, "losses": lost, "pairs": best_of_pairs(accuracies)}
    frames["variance"] = shares_of_variance(accuracies)
    asked.write("ablation", frames, drawn, tables, kept_settings)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
