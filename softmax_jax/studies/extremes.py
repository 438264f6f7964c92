r"""How fast must β grow with n? As the inverse of the gap between the largest logits, which their distribution decides.

The weight of the largest logit is one half where the others sum to as much as it does:

$$\operatorname{mean}_{\text{rows}} \Big(\sum_j e^{-\beta_{1/2} (z_{(1)} - z_j)}\Big)^{-1} = \tfrac12 .$$

A head is trained on sets of 16 items whose ρ has one of several distributions, and β½ is measured at each length.
Beside it stands that of a perfect key, whose logits are ρ itself: nothing is trained there and nothing fitted.

    python -m softmax_jax.studies.extremes
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl
from rich.console import Console

from softmax_jax.configs import load_preset
from softmax_jax.files import read_text, write_csv, write_whole
from softmax_jax.measures.evaluation import evaluate
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import InverseTemperature
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies import extremes_report as report
from softmax_jax.studies.extremes_growth import BETAS, COLUMNS, Row, half_weight, least_loss, of_perfect_key
from softmax_jax.tasks.priorities import QUANTILES
from softmax_jax.training.config import Config, changed
from softmax_jax.training.run import one_line_ends, run
from softmax_jax.training.run_directory import load_checkpoint


def of_model(checkpoint: Path, priority: str, lengths: Sequence[int], sets: int) -> list[Row]:
    """β½ and the best constant β of each seed of a run, by length."""
    config, parameters = load_checkpoint(checkpoint)
    named = {f"{beta:g}": Normalizer(softmax, InverseTemperature(beta)) for beta in BETAS}
    measured = evaluate(
        parameters,
        named,
        seeds=config.all_seeds,
        lengths=lengths,
        sets=sets,
        measures=("accuracy", "loss", "max_weight"),
        task=config.task,
    )
    rows = []
    for of_length in measured:
        for (seed,), frame in of_length.frame().group_by("seed", maintain_order=True):
            found = half_weight(BETAS, frame["max_weight"].to_list()), least_loss(BETAS, frame["loss"].to_list())
            rows.append((priority, int(str(seed)), of_length.n, *found))
    return rows


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    quick: bool = False
    """A look in a few minutes: two seeds, a tenth of the steps, up to 4,096 items."""
    lengths: tuple[int, ...] = tuple(4**power for power in range(2, 9))
    """Items per set, from 16 to 65,536."""
    sets: int = 64
    """Sets per seed and length; of the perfect key four times as many."""
    workdir: Path = Path("runs") / "extremes"
    """Directory for the runs, which are continued where they were stopped; finished ones are kept."""
    output: command_line.UnlessGiven[Path | None] = None
    """Directory for betas.csv, the tables and the chart; results/extremes/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        command_line.each_within("--lengths", self.lengths, 16, 2**20, 1024)
        command_line.within("--sets", self.sets, 1, 2**14, 64)
        command_line.check_directory("--workdir", self.workdir)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(report.TABLES, ""))  # which has a place for each, or raises

    def config(self, priority: str) -> Config:
        """The recipe of a model: that of the frontier, shorter."""
        steps, seeds = (2_000, 2) if self.quick else (20_000, 4)
        return changed(load_preset("frontier"), steps=steps, sets=32, seeds=seeds, priority=priority)


def measured(asked: Arguments, lengths: Sequence[int], console: Console) -> Iterable[Row]:
    """Trains what is not trained yet; the rows of each distribution, those of the perfect key first."""
    for priority in QUANTILES:
        console.print(f"ρ {priority}")
        yield from of_perfect_key(priority, lengths, 4 * asked.sets)
        directory = asked.workdir / f"{priority}{'_quick' if asked.quick else ''}"
        run(asked.config(priority), directory, console)
        yield from of_model(directory, priority, lengths, asked.sets)


def main() -> None:
    """Trains, measures, draws, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with one_line_ends():
        keep_compiled_programs()
        lengths = sorted(n for n in asked.lengths if n <= 4096 or not asked.quick)
        frame = pl.DataFrame(list(measured(asked, lengths, command_line.plain_console())), COLUMNS, orient="row")
        shortest = report.shortest_of(lengths)
        tables = {"growth": report.growth_table(frame, shortest), "rules": report.rules_table(frame, shortest)}
        with command_line.results_of("extremes", asked.output) as output:
            write_csv(output / "betas.csv", frame.columns, frame.rows())
            save_chart(report.growth_chart(frame), output / "growth", asked.paper)
            write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
        if asked.page:
            write_whole(asked.page, put_into(read_text(asked.page), tables))
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
