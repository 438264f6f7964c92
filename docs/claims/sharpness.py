"""Claims of the page that asks how sharp a row must be."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import read
from softmax_jax import theory
from softmax_jax.experiment.measures.significance import detectable, half_width
from studies.normalised_keys import PUBLISHED, RHO, SHORTEST, derived, head_slopes

PAGE = "docs/sharpness.md"
SETTINGS = {
    PAGE: (
        "A needle lies 0.2 above all others",  # by definition
        "mean of four seeds ± half the 95 % interval",
        "β½ with the 95 % interval of a bootstrap over 128 rows",
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


def normalised_keys() -> Claims:
    nearest = read("normalised_keys/betas.csv", key="nearest").filter(pl.col("n") >= SHORTEST)
    off = [abs(derived(n, size) / half - 1) for size, n, half in nearest.select("size", "n", "half").rows()]
    yield PAGE, f"in {len(off)} cells from {SHORTEST} keys on the derived β½ is within {np.ceil(100 * max(off)):.0f} %"
    laws = read("normalised_keys/laws.csv")
    error = {tuple(key): value for *key, value in laws.select("key", "size", "law", "error").rows()}
    root, _, log = PUBLISHED
    soft, sharp, planted = error["nearest", 128, root], error["nearest", 128, log], error["planted", 128, log]
    yield PAGE, f"√(2 log n) is {100 * (1 - soft):.0f} % too soft there and log n {100 * (sharp - 1):.0f} % too sharp"
    yield PAGE, f"For a planted key log n is {100 * (1 - planted):.0f} % too soft"
    slopes = {key: np.mean(powers) for key, powers in head_slopes(read("normalised_keys/models.csv"), "half").items()}
    uniform, needle = ([value for (name, _), value in slopes.items() if name == priority] for priority in RHO)
    assert min(uniform) > 2 / 7 + 0.1  # the power of n of keys that fill the sphere in eight dimensions
    yield PAGE, f"powers of n of {min(uniform):.2f} and {max(uniform):.2f} under uniform ρ"
    yield PAGE, f"{min(needle):.2f} and {max(needle):.2f} for a needle, which log n asks for"
