import numpy as np
import polars as pl
import pytest

from softmax_jax.report.sections import Evaluated, forced_sentence, headline


def sentence(spread: float, forced_from: float) -> str:
    forced = {"threshold": 0.5, "measured": None, "nearest": None, "spread": forced_from}
    return forced_sentence(forced, pl.DataFrame({"n": [16, 1024], "spread": [spread, spread]}))


@pytest.mark.parametrize(("spread", "words"), [(5.0, "about 150 items"), (17334.0, "more than 10^308 items")])
def test_the_length_that_the_spread_forces_is_a_number_that_one_can_read(spread, words):
    with np.errstate(over="ignore"):
        said = sentence(spread, float(1 + np.ceil(np.exp(spread))))
    assert f"{spread:.0f} on average, from {words}." in said
    assert "at no length up to 1,024" in said


@pytest.mark.parametrize(
    ("names", "best"),
    [(["softmax", "softpick", "hardmax"], "hardmax wins back most: 20.0"), (["softmax", "softpick"], "")],
)
def test_the_headline_rests_on_no_offset_of_the_logits(names, best):
    accuracies = {"softmax": 50.0, "softpick": 90.0, "hardmax": 70.0}
    rows = [(name, n, 0, accuracies[name]) for name in names for n in (16, 1024)]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    said = headline(Evaluated("paper", 16, tuple(names), [], frame))
    assert best in said
    assert "softpick" not in said
