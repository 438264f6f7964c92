"""Claims of the page on training and testing under different normalizers."""

from collections.abc import Iterator

import polars as pl

from docs.claims import read
from softmax_jax.experiment.board.order import END
from studies.trained_or_swapped import OWN

PAGE = "docs/train_and_test.md"
SETTINGS = {PAGE: ("half the 95 % interval", "p < 0.05", "up to 64 times those of the")}


def ends() -> Iterator[tuple[str, str]]:
    yield PAGE, f"within {END:g} points of a floor or of 100 %"


def other_way_round() -> Iterator[tuple[str, str]]:
    """Judges softmax swapped in after a sharper training, and the number that repairs it."""
    tests = read("trained_or_swapped/tests.csv").filter(pl.col("p_value").is_not_null())
    yield PAGE, f"Holm over {len(tests)} tests"
    (cost,) = tests.filter(trained="ssmax", test="softmax", task="sort", n=64).to_dicts()
    assert cost["p_value"] < 0.05
    yield PAGE, f"costs {-cost['difference']:.1f} ± {cost['interval']:.1f} points of `sort` after SSMax"
    (queries,) = tests.filter(trained="asentmax", test="softmax", task="multi_query", n=1024).to_dicts()
    assert queries["p_value"] > 0.05
    yield PAGE, f"the {-queries['difference']:.0f} points of `multi_query` after ASEntmax are not"
    models = read("trained_or_swapped/accuracy.csv")
    lengths = tests.select("task", "n").unique()
    keys = ["task", "n", "trained", "seed"]
    kept = models.join(lengths, ["task", "n"], "semi").filter(pl.col("trained") != "softmax")
    both = kept.filter(test="softmax").join(kept.filter(test=OWN), keys, suffix="_own")
    worse = both.filter(pl.col("accuracy") < pl.col("accuracy_own"))
    yield PAGE, f"in {len(worse)} of {len(both)} comparisons"
    calibrated = tests.filter(trained="asentmax", test="ssmax, calibrated")
    yield PAGE, f"restores ASEntmax's models to within {calibrated['difference'].abs().max():.1f} points"
