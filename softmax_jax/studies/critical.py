r"""Can the temperature for long sets be told from sets of 16 items? Two rules, beside what knows the long sets.

- **Near ties.** Choose as `sharpest` does, on sets of the length of training, each the nearest tie of N draws.
- **Critical β.** Measure the critical inverse temperature of the rows at the length n₀ of training, as
  `softmax_jax.theory.critical_beta` has it, its median over the sets. The gaps at the top of n uniform draws shrink as
  1/n, so the critical β grows as n; twice it guarantees a largest weight of 0.6. Hence

$$\beta(n) = \max\Big(1,\; 2\,\beta_c(n_0)\,\frac{n}{n_0}\Big).$$

Beside them stand softmax, the adaptive temperature, and the best constant β, chosen on the long sets themselves.

    python -m softmax_jax.studies.critical
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.files import read_json, read_text, versions, write_csv, write_json, write_whole
from softmax_jax.measures.evaluation import evaluate, frame_of, task_of
from softmax_jax.measures.fits import checkpoint_sha256
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import InverseTemperature
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies import critical_report as report
from softmax_jax.studies.ablation import SOFT_TO_SHARP
from softmax_jax.studies.critical_report import ACCURACIES, BETAS, CHOICES, RULE
from softmax_jax.studies.sharpest import at_training_length
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

NEAREST_OF = (1, 4, 16, 64)
SHARPER = 2.0
"""β over the critical β; the largest weight is then at least 1 / ζ(2) = 0.608."""
Rows = list[tuple[Any, ...]]


def beta_at(n: int, critical: float, trained: int) -> float:
    """The β of the critical rule for n items, from the critical β at the length of training.

    >>> beta_at(1024, critical=0.25, trained=16), beta_at(16, critical=0.25, trained=16)
    (32.0, 1.0)
    """
    return max(1.0, SHARPER * critical * n / trained)


def ties(checkpoint: Path, sets: int) -> Rows:
    """Accuracy of each candidate and seed at the length of training, on ordinary sets and on near ties."""
    frames = {count: at_training_length(checkpoint, SOFT_TO_SHARP, "accuracy", sets, count) for count in NEAREST_OF}
    return [
        (count, *row)
        for count, frame in frames.items()
        for row in frame.select("normalizer", "seed", "accuracy").rows()
    ]


def criticals(checkpoint: Path, sets: int) -> Rows:
    """The critical β of each seed at the length of training."""
    frame = at_training_length(checkpoint, ("softmax",), "critical_beta", sets)
    return frame.select("n", "seed", "critical_beta").rows()


def tested(checkpoint: Path, n: int, beta: float, sets: int) -> Rows:
    """Accuracy at n items of each seed under each constant β, the adaptive temperature and the rule; the critical β."""
    config, parameters = load_checkpoint(checkpoint)
    named = {name: normalizer(name) for name in (*SOFT_TO_SHARP, "adaptive")}
    named[RULE] = Normalizer(softmax, InverseTemperature(beta))
    of = {"seeds": config.all_seeds, "lengths": (n,), "sets": sets, "task": task_of(parameters, config.task)}
    frame = frame_of(evaluate(parameters, named, measures=("accuracy", "critical_beta"), **of))
    return frame.select("n", "normalizer", "seed", "accuracy", "critical_beta").rows()


def kept(path: Path, settings: Mapping[str, Any], compute: Callable[[], Rows]) -> Rows:
    """What is computed, from its file where it was computed before with the same settings."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = read_json(path)
        if found["settings"] == settings:
            return [tuple(row) for row in found["rows"]]
    rows = compute()
    write_json(path, {"settings": settings, "rows": rows})
    return rows


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    checkpoints: tuple[Path, ...] = tuple(
        SHIPPED / name for name in ("paper", "paper_float32", "frontier", "near_ties")
    )
    """Directories of runs."""
    quick: bool = False
    """A look in a few minutes: an eighth of the sets."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Items per set to test the rules at."""
    trust_code: command_line.TrustCode = False
    sets: int = 64
    """Sets per seed and length; of the length of training 64 times as many."""
    workdir: Path = Path("runs") / "critical"
    """Directory for what is measured, so that the study continues where it was stopped."""
    output: command_line.UnlessGiven[Path | None] = None
    """Directory for the CSV files, the tables and the chart; results/critical/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        command_line.each_within("--lengths", self.lengths, 32, 2**20, 1024)
        command_line.within("--sets", self.sets, 8, 2**14, 64)
        command_line.check_directory("--workdir", self.workdir)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(report.TABLES, ""))  # which has a place for each, or raises


def measured(asked: Arguments, checkpoint: Path, console: Console) -> tuple[Rows, Rows, Rows]:
    """Rows of `CHOICES`, `BETAS` and `ACCURACIES` of one run."""
    name, sets = checkpoint.name, asked.sets // 8 if asked.quick else asked.sets
    config, parameters = load_checkpoint(checkpoint)
    trained = task_of(parameters, config.task).longest
    settings = {"sets": sets, "checkpoint_sha256": checkpoint_sha256(parameters), "versions": versions()}

    def of(part: str, compute: Callable[[], Rows], **more: Any) -> Rows:
        console.print(f"{name}: {part}")
        return kept(asked.workdir / name / f"{part}.json", settings | more, compute)

    choices = of("ties", lambda: ties(checkpoint, 64 * sets), nearest_of=list(NEAREST_OF))
    betas = of("criticals", lambda: criticals(checkpoint, 64 * sets))
    critical = float(np.median([beta for *_, beta in betas]))
    accuracies = []
    for n in asked.lengths:
        beta = beta_at(n, critical, trained)
        accuracies += of(f"at_{n}", lambda n=n, beta=beta: tested(checkpoint, n, beta, sets), beta=beta)
    betas = [(*row, beta_at(row[0], critical, trained)) for row in betas]
    betas += [(n, seed, found, beta_at(n, critical, trained)) for n, one, seed, _, found in accuracies if one == RULE]
    choices, betas, accuracies = (
        [(name, *row) for row in rows] for rows in (choices, betas, [row[:4] for row in accuracies])
    )
    return choices, betas, accuracies


def main() -> None:
    """Measures, draws, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with command_line.one_line_errors():
        keep_compiled_programs()
        parts = [measured(asked, checkpoint, command_line.plain_console()) for checkpoint in asked.checkpoints]
        choices, betas, accuracies = (
            pl.DataFrame([row for rows in of_part for row in rows], columns, orient="row")
            for of_part, columns in zip(zip(*parts), (CHOICES, BETAS, ACCURACIES))
        )
        tables = {
            "near_tie_rule": report.choices_table(choices, accuracies),
            "critical_rule": report.rules_table(betas, accuracies),
        }
        with command_line.results_of("critical", asked.output) as output:
            for name, frame in (("choices", choices), ("betas", betas), ("accuracy", accuracies)):
                write_csv(output / f"{name}.csv", frame.columns, frame.rows())
            save_chart(report.rules_chart(choices, accuracies), output / "rules", asked.paper)
            write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
        if asked.page:
            write_whole(asked.page, put_into(read_text(asked.page), tables))
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
