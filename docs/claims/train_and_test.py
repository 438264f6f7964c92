"""Claims of the page on training and testing under different normalizers."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import holm, read, with_half
from softmax_jax.experiment.report.accuracy import ACCURACY
from studies.pairs import pair_means, shares_of_variance
from studies.trained_or_swapped import OWN

PAGE = "docs/train_and_test.md"
SETTINGS = {
    PAGE: (
        "half the 95 % interval",
        "up to 0.003",
        "p < 0.05",
        "up to 64 times those of the",
    )
}
LENGTHS = (1024, 16384, 65536)
MODELS = ("paper_float32", "frontier", "near_ties")


def _seeds(model: str, normalizer: str, n: int) -> list[float]:
    return read(f"reach/{model}.csv", normalizer=normalizer, n=n).sort("seed")["accuracy"].to_list()


def reach() -> Iterator[tuple[str, str]]:
    for normalizer in ("softmax", "adaptive"):
        cells = " | ".join(f"{ACCURACY[normalizer][n]}" for n in LENGTHS[:-1])
        yield PAGE, f"| {normalizer} | {cells} | |"
    for model in MODELS:
        for normalizer in ("softmax", "adaptive"):
            cells = " | ".join(with_half(_seeds(model, normalizer, n)) for n in LENGTHS)
            yield PAGE, f"| {normalizer} | {cells} |"
    mean, published = np.mean(_seeds("frontier", "softmax", 16384)), ACCURACY["softmax"][16384]
    yield PAGE, f"answers {mean:.1f} % of the sets of 16,384 items, where the published model answers {published} %"


def gains_of_the_adaptive_temperature() -> Iterator[tuple[str, str]]:
    """Tests `frontier` at the lengths that softmax does not answer nearly all of."""
    lengths = (4096, 16384, 65536)
    pairs = [(_seeds("frontier", "adaptive", n), _seeds("frontier", "softmax", n)) for n in lengths]
    _, middle, longest = (with_half(np.subtract(adaptive, softmax)) for adaptive, softmax in pairs)
    yield PAGE, f"gains {middle} points at 16,384 items and {longest} at 65,536"
    yield PAGE, f"p < {_power_above(max(holm(pairs)))}"


def _power_above(p_value: float) -> str:
    return f"1e{int(np.ceil(np.log10(p_value)))}"


def losses_of_the_ablation() -> Iterator[tuple[str, str]]:
    long = read("frontier/losses.csv", n=16384, group="base").mean()
    both, lost = long["both"].item(), 100 - long["accuracy"].item()
    yield PAGE, f"{both:.0f} of the base's {lost:.0f} points"
    frame = read("frontier/losses.csv")
    yield PAGE, f"{frame['recipe'].n_unique()} recipes"


def pairs() -> Iterator[tuple[str, str]]:
    frame = read("frontier/accuracy.csv")
    kept = read("frontier/pairs.csv", n=4096).filter(~pl.col("trained").is_in(["hardmax", "signed_l1"]))
    trained = kept["trained"].to_list()
    yield PAGE, f"{len(trained)} distinct trainings"
    means = pair_means(frame, 4096)
    ranges = []
    for test in ("softmax", "asentmax"):
        values = [means[train, test] for train in trained]
        ranges.append(f"{min(values):.0f} to {max(values):.0f} %")
    yield PAGE, "answer {} under softmax, and {} under ASEntmax".format(*ranges)
    plain, sharp = (means["softmax", test] for test in ("softmax", "adaptive"))
    yield PAGE, f"answer {plain:.0f} %, and {sharp:.0f} % when tested under the adaptive temperature"
    noise = max(
        abs(accuracy - found["entmax15", test])
        for found in (pair_means(frame, n) for n in (1024, 4096, 16384))
        for (train, test), accuracy in found.items()
        if train == "entmax"
    )
    yield PAGE, f"`entmax` and `entmax15`, the same map, differ by up to {noise:.1f} points"
    shares = shares_of_variance(frame)
    (train, _, long_train), (test, _, long_test) = (shares[side] for side in ("training", "test"))
    yield (
        PAGE,
        f"The training explains {train:.0f} % of the variance at 1,024 items and {long_train:.0f} % at 16,384, "
        f"the test {test:.0f} and {long_test:.0f} %",
    )


def swapped() -> Iterator[tuple[str, str]]:
    tests = read("trained_or_swapped/tests.csv").filter(pl.col("p_value").is_not_null())
    cells = {
        (trained, test, task, n): row
        for *row, trained, test, task, n in tests.select(
            "difference", "interval", "p_value", "trained", "test", "task", "n"
        ).rows()
    }
    yield PAGE, f"Holm over {len(tests)} tests"
    softmax = cells["ssmax", "softmax", "sort", 64]
    assert softmax[2] < 0.05
    yield PAGE, f"costs {-softmax[0]:.1f} ± {softmax[1]:.1f} points of `sort` after SSMax"
    yield PAGE, f"{-cells['asentmax', 'softmax', 'multi_query', 1024][0]:.0f} points of `multi_query`"
    models = read("trained_or_swapped/accuracy.csv")
    lengths = tests.select("task", "n").unique()
    keys = ["task", "n", "trained", "seed"]
    kept = models.join(lengths, ["task", "n"], "semi").filter(pl.col("trained") != "softmax")
    both = kept.filter(test="softmax").join(kept.filter(test=OWN), keys, suffix="_own")
    worse = both.filter(pl.col("accuracy") < pl.col("accuracy_own"))
    yield PAGE, f"In {len(worse)} of {len(both)} comparisons"
    gains = tests.filter(trained="softmax").sort("difference")
    best = gains.row(-1, named=True)
    assert (best["test"], best["task"], best["n"]) == ("ssmax", "sort", 256)
    yield PAGE, f"the most is {best['difference']:+.1f} ± {best['interval']:.1f} points (SSMax, `sort` at 256 items)"
    calibrated = tests.filter(trained="asentmax", test="ssmax, calibrated")
    assert (calibrated["difference"].abs() < 1).all()
    yield PAGE, f"to within {calibrated['difference'].abs().max():.1f} points"


def keys() -> Iterator[tuple[str, str]]:
    cells = read("frontier/competition.csv")
    yield PAGE, f"The mean miss of {len(cells)} predictions is {cells['miss'].abs().mean():.2f} points"
    yield PAGE, f"the largest {cells['miss'].abs().max():.1f}"
    inside = (cells["miss"].abs() <= cells["interval"]).sum()
    yield PAGE, f"{inside} lie within the 95 % interval over seeds"
