r"""Do sets of 16 items show which temperature long sets need? Two rules, beside the best that knows the long sets.

    python -m studies.critical

Takes 7 minutes on 2 cores.

- **Near ties.** Choose as `studies.sharpest` does, on sets of the length of training, each the nearest tie of N draws.
- **Critical β.** Measure the critical inverse temperature of the rows at the length n₀ of training, as
  `softmax_jax.theory.critical_beta` has it, its median over the sets. The gaps at the top of n uniform draws shrink as
  1/n, so the critical β grows as n; twice it guarantees a largest weight of 0.6. Hence

$$\beta(n) = \max\Big(1,\; 2\,\beta_c(n_0)\,\frac{n}{n_0}\Big).$$

Compared with softmax, the adaptive temperature, and the best constant β, chosen on the long sets themselves.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import altair as alt
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import TrustCode, each_within, within
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.charts import by_size
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.files import versions
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import InverseTemperature
from softmax_jax.temperature import checkpoint_sha256
from studies.common import CHECKPOINTS, SOFT_TO_SHARP, Options, Rows, kept, require_kind, start
from studies.sharpest import at_training_length, sharpest

NEAREST_OF = (1, 4, 16, 64)
SHARPER = 2.0
"""β over the critical β; the largest weight is then at least 1 / ζ(2) = 0.608."""
RULE = "critical rule"
"""Stands in columns of normalizers for softmax at the β that the critical rule gives for the length."""
CHOICES = {
    "checkpoint": pl.String,
    "nearest_of": pl.Int64,
    "normalizer": pl.String,
    "seed": pl.Int64,
    "accuracy": pl.Float64,
}
BETAS = {"checkpoint": pl.String, "n": pl.Int64, "seed": pl.Int64, "critical": pl.Float64, "rule": pl.Float64}
ACCURACIES = {
    "checkpoint": pl.String,
    "n": pl.Int64,
    "normalizer": pl.String,
    "seed": pl.Int64,
    "accuracy": pl.Float64,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("critical_rule",)

    checkpoints: tuple[Path, ...] = CHECKPOINTS
    """Directories of runs."""
    quick: bool = False
    """A look in a few minutes: an eighth of the sets."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    """Items per set to test the rules at."""
    trust_code: TrustCode = False
    sets: int = 64
    """Sets per seed and length; of the length of training 64 times as many."""
    workdir: Path = Path("runs") / "critical"
    """Directory for what is measured, so that the study continues where it was stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("--lengths", self.lengths, 32, 2**20, 1024)
        within("--sets", self.sets, 8, 2**14, 64)
        check_directory("--workdir", self.workdir)


def beta_at(n: int, critical: float, trained: int) -> float:
    """Returns the β of the critical rule for n items, from the critical β at the length of training.

    >>> beta_at(1024, critical=0.25, trained=16), beta_at(16, critical=0.25, trained=16)
    (32.0, 1.0)
    """
    return max(1.0, SHARPER * critical * n / trained)


def ties(checkpoint: Path, sets: int) -> Rows:
    """Returns the accuracy of each candidate and seed at the length of training, on ordinary sets and on near ties."""
    frames = {count: at_training_length(checkpoint, SOFT_TO_SHARP, "accuracy", sets, count) for count in NEAREST_OF}
    return [
        (count, *row)
        for count, frame in frames.items()
        for row in frame.select("normalizer", "seed", "accuracy").rows()
    ]


def criticals(checkpoint: Path, sets: int) -> Rows:
    """Returns the critical β of each seed at the length of training."""
    frame = at_training_length(checkpoint, ("softmax",), "critical_beta", sets)
    return frame.select("n", "seed", "critical_beta").rows()


def tested(checkpoint: Path, n: int, beta: float, sets: int) -> Rows:
    """Returns accuracy and critical β at n items of each seed under each constant β, the adaptive one and the rule."""
    config, parameters = load_checkpoint(checkpoint)
    named = {name: normalizer(name) for name in (*SOFT_TO_SHARP, "adaptive")}
    named[RULE] = Normalizer(softmax, InverseTemperature(beta))
    options = {
        "seeds": config.all_seeds,
        "lengths": (n,),
        "sets": sets,
        "task": require_kind(config.task, MaxRetrieval),
    }
    frame = frame_of(evaluate(parameters, named, measures=("accuracy", "critical_beta"), **options))
    return frame.select("n", "normalizer", "seed", "accuracy", "critical_beta").rows()


def measured(arguments: Arguments, checkpoint: Path, console: Console) -> tuple[Rows, Rows, Rows]:
    """Returns the rows of `CHOICES`, `BETAS` and `ACCURACIES` of one run."""
    name, sets = checkpoint.name, arguments.sets // 8 if arguments.quick else arguments.sets
    config, parameters = load_checkpoint(checkpoint)
    trained = require_kind(config.task, MaxRetrieval).longest
    settings = {"sets": sets, "checkpoint_sha256": checkpoint_sha256(parameters), "versions": versions()}

    def part_rows(part: str, compute: Callable[[], Rows], **more: Any) -> Rows:
        console.print(f"{name}: {part}")
        return kept(arguments.workdir / name / f"{part}.json", settings | more, compute)

    choices = part_rows("ties", lambda: ties(checkpoint, 64 * sets), nearest_of=list(NEAREST_OF))
    betas = part_rows("criticals", lambda: criticals(checkpoint, 64 * sets))
    critical = float(np.median([beta for *_, beta in betas]))
    accuracies = []
    for n in arguments.lengths:
        beta = beta_at(n, critical, trained)
        accuracies += part_rows(f"at_{n}", lambda n=n, beta=beta: tested(checkpoint, n, beta, sets), beta=beta)
    betas = [(*row, beta_at(row[0], critical, trained)) for row in betas]
    betas += [
        (n, seed, critical_beta, beta_at(n, critical, trained))
        for n, name_tested, seed, _, critical_beta in accuracies
        if name_tested == RULE
    ]
    choices, betas, accuracies = (
        [(name, *row) for row in rows] for rows in (choices, betas, [row[:4] for row in accuracies])
    )
    return choices, betas, accuracies


def chosen(choices: pl.DataFrame) -> dict[tuple[str, int], str]:
    """Returns the candidate that the rule of `sharpest` takes, by checkpoint and by number of draws of a set."""
    means = choices.group_by("checkpoint", "nearest_of", "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    return {
        (checkpoint, count): sharpest(dict(candidates.select("normalizer", "accuracy").rows()))
        for (checkpoint, count), candidates in means.group_by("checkpoint", "nearest_of", maintain_order=True)
    }


def behind(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns the mean accuracy over seeds by checkpoint, n and normalizer, and how far each is ahead of the best.

    `best` is the most accurate candidate there, `ahead` the difference in points, below 0 for less accurate ones.
    """
    keys = ["checkpoint", "n"]
    means = accuracies.group_by(*keys, "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    constants = means.filter(pl.col("normalizer").is_in(SOFT_TO_SHARP)).sort("accuracy", descending=True)
    best = constants.group_by(keys, maintain_order=True).first().rename({"normalizer": "best", "accuracy": "most"})
    return means.join(best, keys, maintain_order="left").with_columns(ahead=pl.col("accuracy") - pl.col("most"))


def choices_frame(choices: pl.DataFrame, accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns which candidate the rule of `sharpest` takes on near ties, in points: how far the candidates lie apart,
    and by how much the chosen one is ahead of the best constant at each length.
    """
    choice, means = chosen(choices), behind(accuracies)
    lengths = means["n"].unique().sort().to_list()
    rows = []
    for (checkpoint, count), name in choice.items():
        candidates = choices.filter(checkpoint=checkpoint, nearest_of=count)
        spread = candidates.group_by("normalizer").agg(pl.mean("accuracy"))["accuracy"].to_numpy()
        cost = means.filter(checkpoint=checkpoint, normalizer=name).sort("n")["ahead"].to_list()
        rows.append((checkpoint, count, float(np.ptp(spread)), name, *cost))
    columns = ("checkpoint", "nearest_of", "range", "chosen", *(f"ahead_at_{n}" for n in lengths))
    return pl.DataFrame(rows, columns, orient="row")


def ahead_of(accuracies: pl.DataFrame, name: str, other: str) -> pl.DataFrame:
    """Returns by how many points a normalizer is `ahead` of another, by n and seed."""
    keys = ["n", "seed"]
    both = accuracies.filter(normalizer=name).join(accuracies.filter(normalizer=other), keys, suffix="_other")
    return both.select(*keys, ahead=pl.col("accuracy") - pl.col("accuracy_other"))


def rules_frame(betas: pl.DataFrame, accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns for each checkpoint and length the critical β, median of the seeds, that of the rule, and accuracies."""
    keys = ["checkpoint", "n", "best", "most"]
    rows = []
    for (checkpoint, n, best, most), means in behind(accuracies).group_by(keys, maintain_order=True):
        rule_betas = betas.filter(checkpoint=checkpoint, n=n)
        accuracy = dict(means["normalizer", "accuracy"].rows())
        against = ahead_of(accuracies.filter(checkpoint=checkpoint, n=n), RULE, str(best))
        ((ahead, high),) = over_seeds(against, ["n"], "ahead")["value", "high"].rows()
        betas_at_n = (float(np.median(rule_betas["critical"].to_numpy())), rule_betas["rule"][0])
        named = (accuracy["softmax"], accuracy["adaptive"], best, most, accuracy[RULE])
        rows.append((checkpoint, n, *betas_at_n, *named, ahead, high - ahead))
    columns = ("checkpoint", "n", "critical", "beta", "softmax", "adaptive", "best", "most")
    return pl.DataFrame(rows, (*columns, "rule", "ahead", "interval"), orient="row")


def rules_table(rules: pl.DataFrame) -> str:
    """Returns the accuracies of `rules_frame` at the longest length as a table for the page."""
    n = max(rules["n"].to_list())
    shown = rules.filter(n=n).select("checkpoint", "softmax", "adaptive", "most", "rule", "ahead", "interval")
    rows = [
        [checkpoint, *(f"{accuracy:.1f}" for accuracy in accuracies), f"{ahead:+.2f} ± {half:.2f}"]
        for checkpoint, *accuracies, ahead, half in shown.rows()
    ]
    columns = [f"checkpoint (n = {n:,})", "softmax", "adaptive", "best constant", "rule", "against the best constant"]
    return tables.markdown_table(columns, rows)


def rules_chart(choices: pl.DataFrame, accuracies: pl.DataFrame) -> charts.Chart:
    """Draws by how many points each rule is ahead of the best constant: a panel for each checkpoint, a dot a length.

    The title is about the critical rule on models in float32.
    """
    choice, most = chosen(choices), int(choices["nearest_of"].to_numpy().max())
    means = behind(accuracies)
    parts = []
    for checkpoint in means["checkpoint"].unique(maintain_order=True):
        ways = {
            "no rule: softmax": "softmax",
            "no rule: adaptive temperature": "adaptive",
            "the sharpest on ordinary sets": choice[checkpoint, min(choices["nearest_of"])],
            f"the sharpest on nearest ties of {most}": choice[checkpoint, most],
            "β by the critical rule": RULE,
        }
        checkpoint_means = means.filter(checkpoint=checkpoint)
        parts += [checkpoint_means.filter(normalizer=name).with_columns(way=pl.lit(way)) for way, name in ways.items()]
    items = pl.col("n").map_elements("{:,}".format)
    frame = pl.concat(parts).select("checkpoint", "way", "ahead", items=items)
    ahead, lengths = frame["ahead"].to_numpy(), frame["items"].unique(maintain_order=True).to_list()
    scale = alt.Scale(type="symlog", constant=1, domain=[1.2 * ahead.min(), 1.5 * max(1, ahead.max())], nice=False)
    axis = alt.Axis(values=[-50, -20, -10, -5, -2, -1, 0, 1, 2])
    dots = alt.Chart(charts.data(frame)).mark_circle(size=60, opacity=1)
    dots = dots.encode(
        x=alt.X("ahead:Q", title="points ahead of the best constant β (log scale beyond 1)", scale=scale, axis=axis),
        y=alt.Y("way:N", title=None, sort=None, axis=alt.Axis(grid=True, labelLimit=240)),
        yOffset=alt.YOffset("items:N", sort=lengths),
        color=charts.colour_by("items", by_size(lengths), "items in the set").legend(orient="top"),
    ).properties(width=240, height=alt.Step(24, **{"for": "position"}))
    rule_means = means.filter(pl.col("checkpoint") != "paper", normalizer=RULE)["ahead"].to_numpy()
    off = np.ceil(-10 * rule_means.min()) / 10
    title = charts.chart_title(
        f"β from one number at 16 items: within {off:.1f} points of the best in float32",
        "the best constant β is chosen on the long sets themselves; mean of the seeds",
    )
    facet = alt.Facet("checkpoint:N", title=None, sort=frame["checkpoint"].unique(maintain_order=True).to_list())
    return dots.facet(facet, columns=1).properties(title=title)


def study(arguments: Arguments) -> None:
    """Measures, draws, writes."""
    parts = [measured(arguments, checkpoint, plain_console()) for checkpoint in arguments.checkpoints]
    choices, betas, accuracies = (
        pl.DataFrame([row for rows in rows_of_part for row in rows], columns, orient="row")
        for rows_of_part, columns in zip(zip(*parts), (CHOICES, BETAS, ACCURACIES))
    )
    rules = rules_frame(betas, accuracies)
    tables = {"critical_rule": rules_table(rules)}
    frames = {"choices": choices, "betas": betas, "accuracy": accuracies, "rules": rules}
    frames["near_ties"] = choices_frame(choices, accuracies)
    arguments.write("critical", frames, {"rules": rules_chart(choices, accuracies)}, tables)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
