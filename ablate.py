"""Trains recipes that differ in one thing each, and measures where each of them loses accuracy."""

import dataclasses
import time
from pathlib import Path

from softmax_jax.configs import load_preset, preset_summaries
from softmax_jax.files import read_text
from softmax_jax.measures.long_sets import LONGEST_WHOLE
from softmax_jax.normalizers.checks import one_of
from softmax_jax.report.drawing import PaperOption
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies.ablation import BASE, PRECISION, Recipe, recipes
from softmax_jax.studies.ablation_run import TABLES, outcomes, write
from softmax_jax.training.config import changed
from softmax_jax.training.run import one_line_ends


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
    """Models per recipe, at least two."""
    groups: command_line.UnlessGiven[tuple[str, ...]] = ()
    """What to vary, as in `width steps`; everything but `precision` by default, which has a study of its own."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Items per set to test at."""
    sets: int = 256
    """Sets per seed and length."""
    workdir: Path = Path("runs") / "ablate"
    """Directory for the runs, which are continued where they were stopped; finished ones are kept."""
    output: command_line.UnlessGiven[Path | None] = None
    """Directory for the tables and the charts; results/ablate/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        one_of("--preset", self.preset, preset_summaries())
        command_line.within("--steps", self.steps, 16, 2**28, 20_000)  # an eighth of which some recipes train
        command_line.within("--batch", self.batch, 4, 2**20, 32)  # of which some take a quarter
        command_line.within("--seeds", self.seeds, 2, 2**10, 4)  # the best temperature of one is that of the others
        command_line.within("--sets", self.sets, 1, 2**20, 256)
        command_line.each_within("--lengths", self.lengths, 2, LONGEST_WHOLE, 1024)
        for group in self.groups:
            one_of("--groups", group, {recipe.group for recipe in self.every_recipe()})
        command_line.check_directory("--workdir", self.workdir)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(TABLES, ""))  # which has a place for each, or raises

    def every_recipe(self) -> list[Recipe]:
        """The base and all that is varied."""
        base = load_preset(self.preset)
        return recipes(changed(base, steps=self.steps, sets=self.batch, seeds=self.seeds))


def main() -> None:
    """Trains, measures, prints, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with one_line_ends():
        keep_compiled_programs()
        groups = asked.groups or {recipe.group for recipe in asked.every_recipe()} - {PRECISION}
        chosen = [one for one in asked.every_recipe() if one.group in (BASE, *groups)]
        start, shipped = time.perf_counter(), {name: load_preset(name) for name in preset_summaries()}
        found = outcomes(chosen, shipped, asked.lengths, asked.sets, asked.workdir)
        with command_line.results_of("ablate", asked.output) as output:
            paths = {"workdir": str(asked.workdir), "output": str(output), "page": str(asked.page)}
            write(found, dataclasses.asdict(asked) | paths, output, asked.page, asked.paper)
        minutes = f"{(time.perf_counter() - start) / 60:.0f} minutes"
        print(f"trained and measured {len(chosen)} recipes in {minutes}; wrote {output}")


if __name__ == "__main__":
    main()
