"""Trains recipes that differ in one thing each, and measures where each of them loses accuracy."""

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from configs import load_presets
from softmax_jax.measures.evaluation import LONGEST_WHOLE
from softmax_jax.normalizers.checks import did_you_mean, one_of
from softmax_jax.report import ablation as report
from softmax_jax.report.charts import save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime.command_line import (
    check_directory,
    each_once,
    one_device_per_core,
    one_line_errors,
    parse,
    within,
)
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.runtime.files import check_output, reason, versions, write_csv, write_json, write_whole
from softmax_jax.studies import scaling_law
from softmax_jax.studies.ablation import (
    BASE,
    SCALING,
    UNSEEN,
    AccuracyRow,
    Losses,
    Outcome,
    Recipe,
    accuracies,
    losses,
    normalizers_to_test,
    recipes,
    scaling_recipes,
)
from softmax_jax.training.config import changed, settings_of
from softmax_jax.training.costs import step_multiply_adds
from softmax_jax.training.run import Interrupted, NotFiniteError, run
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

FEWEST_STEPS = 16
"""So that all recipes, some of an eighth of them, train."""
SMALLEST_BATCH = 4
"""So that a quarter of it is a batch."""
TABLES = ("losses", "pairs", "scaling")
"""Marks of the page."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    preset: str = "frontier"
    """The preset whose recipe is the base."""
    steps: int = 20_000
    """Training steps of the base; of the preset's recipe so much alone, as there are many runs."""
    batch: int = 32
    """Sets in a batch of the base. As many steps of small batches reach further than fewer of large ones."""
    seeds: int = 4
    """Models per recipe."""
    groups: tuple[str, ...] = ()
    """What to vary, as in `width steps`; everything by default."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Items per set to test at."""
    sets: int = 256
    """Sets per seed and length."""
    output: Path = Path("ablation")
    """Directory for the runs, the tables and the charts. Runs that it holds are continued, finished ones kept."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""

    def __post_init__(self) -> None:
        one_of("--preset", self.preset, load_presets())
        within("--steps", self.steps, FEWEST_STEPS, 2**28, 20_000)
        within("--batch", self.batch, SMALLEST_BATCH, 2**20, 32)
        within("--seeds", self.seeds, 1, 2**10, 4)
        within("--sets", self.sets, 1, 2**20, 256)
        each_once("--lengths", self.lengths)
        for length in self.lengths:
            within("--lengths", length, 2, LONGEST_WHOLE, 1024)
        groups = dict.fromkeys(recipe.group for recipe in self.every_recipe())
        for group in self.groups:
            if group not in groups:
                hint = did_you_mean(group, groups)
                raise ValueError(f"--groups has {group!r}: {hint}they must be of {', '.join(map(repr, groups))}")
        check_directory("--output", self.output)
        if self.page:
            try:
                page = self.page.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"--page is {self.page}: it must be a Markdown page, and {reason(error)}") from None
            put_into(page, dict.fromkeys(TABLES, ""))  # which has a place for each, or raises

    def every_recipe(self) -> list[Recipe]:
        """The base and all that is varied."""
        base = load_presets()[self.preset][1]
        base = changed(base, steps=self.steps, sets=self.batch, seeds=self.seeds)
        return recipes(base) + scaling_recipes(base)

    def chosen_recipes(self) -> list[Recipe]:
        """The base and what is varied in the groups asked for."""
        return [recipe for recipe in self.every_recipe() if not self.groups or recipe.group in (BASE, *self.groups)]


def main() -> None:
    """Trains, measures, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    console, errors = Console(), Console(stderr=True)
    with one_line_errors(errors):
        check_output(arguments.output)
        keep_compiled_programs()
        chosen = arguments.chosen_recipes()
        start = time.perf_counter()
        try:
            trained = [recipe for recipe in chosen if train(recipe, arguments.output, console, chosen)]
        except Interrupted as interruption:
            errors.print(str(interruption), soft_wrap=True, markup=False)
            raise SystemExit(130) from None
        found = [measured(arguments, workdir(arguments.output, recipe), recipe, console) for recipe in trained]
        found += [measured(arguments, SHIPPED / recipe.name, recipe, console) for recipe in shipped_recipes()]
        write(arguments, found)
        took = time.perf_counter() - start
        print(f"trained and measured {len(chosen)} recipes in {took / 60:.0f} minutes; wrote {arguments.output}")


def shipped_recipes() -> list[Recipe]:
    """Those of the trained models that come with the project, for comparison."""
    return [
        Recipe("as shipped", name, config) for name, (_, config) in load_presets().items() if (SHIPPED / name).is_dir()
    ]


def workdir(output: Path, recipe: Recipe) -> Path:
    """Where a recipe is trained."""
    return output / "runs" / re.sub(r"[^a-z0-9.]+", "-", f"{recipe.group} {recipe.name}".lower()).strip("-")


def train(recipe: Recipe, output: Path, console: Console, among: Sequence[Recipe]) -> bool:
    """Trains a recipe, or what its directory lacks of it; whether it kept finite.

    Raises ValueError if the directory holds a run of other settings.
    """
    directory = workdir(output, recipe)
    console.print(f"recipe {among.index(recipe) + 1} of {len(among)}: {recipe.group}: {recipe.name}", soft_wrap=True)
    try:
        run(recipe.config, directory, console)
    except NotFiniteError as error:
        console.print(f"left out: {error}", soft_wrap=True, markup=False)
        return False
    return True


def measured(arguments: Arguments, checkpoint: Path, recipe: Recipe, console: Console) -> Outcome:
    """The accuracies of a recipe; from its file where it was measured before in the same way."""
    settings = {"lengths": list(arguments.lengths), "sets": arguments.sets}
    path = workdir(arguments.output, recipe) / "accuracies.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        if kept["settings"] == settings:
            return Outcome(recipe, [AccuracyRow(*row) for row in kept["rows"]])
    console.print(f"measuring {recipe.group}: {recipe.name}", soft_wrap=True)
    config, parameters = load_checkpoint(checkpoint)
    seeds = config.all_seeds
    measure = accuracies(parameters, normalizers_to_test(), seeds=seeds, lengths=arguments.lengths, sets=arguments.sets)
    rows = [row for of_length in measure for row in of_length]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"settings": settings, "rows": rows})
    return Outcome(recipe, rows)


def scaling_points(found: Sequence[Outcome], groups: Sequence[str]) -> list[scaling_law.Point]:
    """The accuracy of every seed of the recipes in these groups, under the best constant temperature at each length."""
    points = []
    for (group, _, config), rows in found:
        if group in groups:
            width = settings_of(config)["width"]
            compute = config.steps * step_multiply_adds(config.task.longest, config.task.sets, width)
            best = {one.n: one.best for one in losses(rows)}
            points += [
                scaling_law.Point(compute, width, row.n, row.seed, row.accuracy)
                for row in rows
                if row.normalizer == best[row.n]
            ]
    return points


def write(arguments: Arguments, found: Sequence[Outcome]) -> None:
    """Writes the tables, the charts, the law, and the page if one is named."""
    output = arguments.output
    lines = [(group, name, *row) for (group, name, _), rows in found for row in rows]
    write_csv(output / "accuracy.csv", ("group", "recipe", *AccuracyRow._fields), lines)
    lost = [(group, name, *one) for (group, name, _), rows in found for one in losses(rows)]
    write_csv(output / "losses.csv", ("group", "recipe", *Losses._fields), lost)
    settings = dataclasses.asdict(arguments) | {"output": str(output), "page": str(arguments.page)}
    described = {f"{group}: {name}": settings_of(config) for (group, name, config), _ in found}
    write_json(output / "ablation.json", {"settings": settings, "recipes": described, "versions": versions()})
    charts = {"losses": report.losses_chart(found)}
    charts |= {f"pairs_{n}": chart for n in arguments.lengths if (chart := report.pairs_chart(found, n))}
    tables = {"losses": report.losses_table(found), "pairs": report.pairs_table(found, max(arguments.lengths))}
    unseen = scaling_points(found, (UNSEEN,))
    grid = scaling_points(found, (SCALING,))
    if unseen and grid:  # without which width and compute do not vary enough of themselves
        seen = scaling_points(found, (BASE, "steps", "width")) + grid
        law = scaling_law.fit(seen)
        charts["scaling"] = report.scaling_chart(law, seen, unseen)
        tables["scaling"] = report.scaling_table(law, unseen)
    for name, chart in charts.items():
        save_chart(chart, output / name)
    write_whole(output / "ablation.md", "\n\n".join(tables.values()) + "\n")
    if arguments.page:
        write_whole(arguments.page, put_into(arguments.page.read_text(), tables))


if __name__ == "__main__":
    main()
