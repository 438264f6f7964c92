"""Claims of the page that asks how sharp a row must be."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import read
from softmax_jax import theory
from softmax_jax.experiment.measures.significance import detectable, half_width

PAGE = "docs/sharpness.md"
SETTINGS = {
    PAGE: (
        "A needle lies 0.2 above all others",  # by definition
        "mean of four seeds ± half the 95 % interval",
    )
}
Claims = Iterator[tuple[str, str]]


def bounds() -> Claims:
    forced = int(theory.length_forced_below(0.5, spread=3.0))
    yield PAGE, f"a lead of 3 is lost from {forced} logits on"
    yield (
        PAGE,
        f"At twice it the largest weight is at least {theory.largest_weight_near_critical(2.0, np.inf).lower:.3f}",
    )
    logits = np.array([0.0, -0.001, -100.0])
    weight = 1 / np.exp(0.1 * float(theory.critical_beta(logits)) * logits).sum()
    yield PAGE, f"logits of 0, −0.001 and −100 at a tenth of it leave {weight:.3f}"


def growth() -> Claims:
    slopes = read("extremes/growth.csv")
    models = slopes.filter(pl.col("seed") >= 0)
    perfect = dict(slopes.filter(seed=-1, beta="β½").select("priority", "power").rows())
    half = dict(models.filter(beta="β½").group_by("priority").agg(pl.mean("power")).rows())
    apart = {priority: abs(half[priority] - power) for priority, power in perfect.items()}
    assert {name for name, off in apart.items() if round(off, 2) > 0.03} == {"uniform"}
    within = max(off for name, off in apart.items() if name != "uniform")
    yield PAGE, f"Models are within {np.ceil(100 * within) / 100:.2f} of its slopes for five of six distributions"
    least = models.filter(beta="β of the least loss").group_by("priority").agg("power").rows()
    assert [name for name, powers in least if np.mean(powers) > (half_width(powers) or 0)] == ["needle"]
    shown = {name: detectable(powers) or np.nan for name, powers in least}
    needle = shown.pop("needle")
    yield PAGE, f"only slopes above {min(shown.values()):.2f} to {max(shown.values()):.2f} would have been noticed"
    yield PAGE, f"(needle: {needle:.2f})"
    longest = read("extremes/betas.csv", priority="uniform", n=65536).filter(pl.col("seed") >= 0)
    ends = [longest[name].cast(pl.Float64).sort().to_list() for name in ("best", "half")]
    sentence = "the least loss needs β of {:.1f} to {:.1f}, half the weight {:.0f} to {:.0f}"
    yield PAGE, sentence.format(*(end for values in ends for end in (values[0], values[-1])))


def rules_of_growth() -> Claims:
    rules = read("extremes/rules.csv").filter(pl.col("seed") >= 0).group_by("priority").agg("log n").rows()
    ratios = dict(rules)
    soft, flat = 100 * (1 - np.mean(ratios["needle"])), 1 / np.mean(ratios["uniform"])
    yield PAGE, f"SSMax's β is {soft:.0f} % too small for the needle and {flat:.0f} times too small for uniform ρ"
    sharp = ratios["exponential"]
    yield PAGE, f"For exponential ρ it is {np.mean(sharp):.1f} ± {half_width(sharp):.1f} times too large"


def critical_rule() -> Claims:
    cells = read("critical/rules.csv").filter(pl.col("checkpoint") != "paper")
    off, half = np.ceil(10 * cells["ahead"].abs().to_numpy().max()) / 10, cells["interval"].to_numpy().max()
    yield PAGE, f"within {off:.1f} points of the best constant, with half widths up to {half:.1f}"
    constant = cells.filter(beta=1.0).height
    yield PAGE, f"in {constant} of {cells.height} [cells](data/critical/rules.csv) the rule is β = 1"


def hardmax() -> Claims:
    rounded = read("factorial/accuracy.csv", n=1024, trained="bfloat16", tested="bfloat16")
    means = dict(rounded.group_by("normalizer").agg(pl.mean("accuracy")).rows())
    sentence = "at 1,024 items it answers {:.1f} % on `paper`, the best constant {:.1f}"
    yield PAGE, sentence.format(means["hardmax"], means["best constant θ"])
    exact = dict(read("paper_float32.csv", normalizer="hardmax").group_by("n").agg(pl.mean("accuracy")).rows())
    yield PAGE, f"hardmax answers {exact[16]:.1f} % of 16 items and {exact[16384]:.1f} % of 16,384"
