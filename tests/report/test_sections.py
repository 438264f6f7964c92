from pathlib import Path

import numpy as np
import polars as pl
import pytest

from softmax_jax.measures.evaluation import TRUE_ITEM
from softmax_jax.report.page import Evaluated, critical_sentence, forced_sentence, helps, names_of, said
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.run_directory import SHIPPED


def sentence(spread: float, forced_from: float) -> str:
    forced = {"threshold": 0.5, "measured": None, "nearest": None, "spread": forced_from}
    return forced_sentence(forced, pl.DataFrame({"n": [16, 1024], "spread": [spread, spread]}))


@pytest.mark.full
@pytest.mark.parametrize(("spread", "words"), [(5.0, "about 150 items"), (17334.0, "more than 10³⁰⁸ items")])
def test_the_length_that_the_spread_forces_is_a_number_that_one_can_read(spread, words):
    with np.errstate(over="ignore"):
        said = sentence(spread, float(1 + np.ceil(np.exp(spread))))
    assert f"{spread:.0f} on average, from {words}." in said
    assert "at no length up to 1,024" in said


@pytest.mark.full
@pytest.mark.parametrize(("beta", "words"), [(1.0, ", where softmax has 1."), (None, "in the median.")])
def test_the_critical_beta_is_told_beside_that_of_the_normalizer(beta, words):
    start, end = ({"n": n, "critical_beta": n / 64, "beta": beta} for n in (16, 4096))
    told = critical_sentence("softmax", start, end)
    assert "0.25 at 16 items and 64 at 4,096" in told
    assert told.endswith(words)


def run_of(accuracies, lost=()):
    """A run of one seed at 16 and 1024 items."""
    rows = [(name, n, 0, value) for name, values in accuracies.items() for n, value in zip((16, 1024), values)]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    return Evaluated("paper", MaxRetrieval(), tuple(name for name in accuracies if name not in lost), [], frame)


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "best"),
    [(["softmax", "softpick", "hardmax"], "hardmax wins back most: 20.0"), (["softmax", "softpick"], "")],
)
def test_what_helps_rests_on_no_offset_of_the_logits(names, best):
    accuracies = {"softmax": 50.0, "softpick": 90.0, "hardmax": 70.0}
    told = helps(run_of({name: (accuracies[name],) * 2 for name in names}))
    assert best in (told or "")
    assert "softpick" not in (told or "")


@pytest.mark.parametrize(
    ("gains", "words"), [((9.0, 10.0, 11.0), "wins back most: 10.0 points"), ((-9.0, 1.0, 9.0), "beyond chance")]
)
def test_a_gain_is_named_only_beyond_chance(gains, words):
    rows = [("softmax", 16, seed, 50.0) for seed in range(3)]
    rows += [("hardmax", 16, seed, 50.0 + gain) for seed, gain in enumerate(gains)]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    assert words in (helps(Evaluated("paper", MaxRetrieval(), ("softmax", "hardmax"), [], frame)) or "")


@pytest.mark.full
def test_rounding_is_named_where_a_run_rounds():
    accuracies = {"softmax": (99.0, 52.0), "hardmax": (99.0, 90.0), TRUE_ITEM: (100.0, 99.0)}
    exact = run_of(accuracies, lost=("hardmax", TRUE_ITEM))
    assert "rounded" not in said(exact)["Why"]
    assert (
        "rounded to bfloat16: items whose ρ lie within 0.004"
        in said(exact._replace(task=MaxRetrieval(matmul="bfloat16")))["Why"]
    )


@pytest.mark.full
def test_what_is_lost_adds_up_where_half_is_lost():
    accuracies = {"softmax": (99.0, 52.0), "hardmax": (99.0, 90.0), TRUE_ITEM: (100.0, 99.0)}
    told = said(run_of(accuracies, lost=("hardmax", TRUE_ITEM)))
    assert list(told) == ["What falls", "Why"]
    assert "99.0 % of the sets of 16 items right, and 52.0 % of those of 1,024" in told["What falls"]
    assert "At 1,024 items it answers 52.0 % right, and loses 38.0 % to dispersion" in told["Why"]
    assert "9.0 % to the key" in told["Why"]
    assert "1.0 % to the value" in told["Why"]


@pytest.mark.full
def test_our_models_of_the_paper_are_called_a_replication():
    assert names_of([SHIPPED / "paper", SHIPPED / "frontier"]) == ["our replication", "frontier"]
    assert names_of([Path("runs/paper")]) == ["paper"]
