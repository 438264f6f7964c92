"""Accuracies beside the published ones, in a chart and in the table of every measure."""

import polars as pl
import pytest

from softmax_jax.experiment.measures.ceiling import accuracy_of_ties
from softmax_jax.experiment.report.accuracy import ACCURACY, NO_MODEL, accuracy_chart, print_evaluation
from tests.experiment.report.charts import items_of, printed, values_of

FRAME = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "accuracy": accuracy + spread * (seed - 2) + 0.5}
        for name, spread in (("softmax", 0.5), ("hardmax", 1.0))
        for n, accuracy in ((32, 99.0), (64, 90.0))
        for seed in range(3)
    ]
)


def summary(*rows):
    columns = ("normalizer", "n", "accuracy", "interval", "loss", "calibration", "p_value")
    return pl.DataFrame(rows, columns, orient="row").with_columns(gain=0.5, gain_interval=0.25)


def test_numbers_stand_under_their_length_and_what_is_published_has_the_marks_of_its_source():
    rows = [("softmax", 16, 98.7, 0.11, 0.05, 1.23, None), ("softmax", 32, 96.1, 0.21, 0.15, 2.34, None)]
    rows += [("adaptive", 16, 98.6, None, 0.04, 3.45, 0.4), ("adaptive", 32, 97.3, None, 0.14, 4.56, 0.002)]
    text = printed(print_evaluation, summary(*rows), ACCURACY)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    softmax, adaptive = lines.index("softmax accuracy 98.70 96.10"), lines.index("adaptive accuracy 98.60 97.30")
    below = ["± 0.11 0.21", "loss 0.050 0.150", "calibration 1.23 2.34", "gain +0.50 +0.50", "±gain 0.25 0.25"]
    assert lines[softmax + 1 : softmax + 6] == below
    assert "p 0.4 0.002" in lines[adaptive:]
    assert not any(line.startswith("± ") for line in lines[adaptive:])
    published = lines.index("softmax, published accuracy 98.6† 97.1*")
    assert lines[published + 1] == "difference +0.1 -1.0"
    assert "agree" not in text
    assert "published" not in printed(print_evaluation, summary(*rows))


def test_lengths_that_do_not_fit_the_width_go_to_further_tables():
    lengths = [2**power for power in range(1, 15)]
    rows = [("softmax", n, 90.0, 0.1, 0.5, 1.0, None) for n in lengths]
    text = printed(print_evaluation, summary(*rows), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert items_of(text) == lengths


def test_the_chart_has_bands_within_0_and_100_and_crosses_and_the_reference_of_the_published_recipe_only():
    chart = accuracy_chart(FRAME, "A title", {"": ACCURACY})
    rows = values_of(chart)
    drawn = {(row["normalizer"], row["n"]): row for row in rows if "normalizer" in row}
    softmax, hardmax = drawn["softmax", 32], drawn["hardmax", 64]
    assert (softmax["low"], softmax["high"]) == (pytest.approx(99 - 4.3027 * 0.5 / 3**0.5, abs=1e-3), 100.0)
    assert hardmax["high"] - hardmax["value"] == pytest.approx(hardmax["value"] - hardmax["low"])
    assert drawn[NO_MODEL, 64]["value"] == pytest.approx(accuracy_of_ties(8, 64), abs=1e-3)
    # The adaptive row was not measured; the cell at 32 items has no source that could be read.
    crosses = [row for row in rows if "published" in row]
    assert [(row["published"], row["value"], row["opacity"]) for row in crosses] == [
        ("softmax", 97.1, 0.4),
        ("softmax", 94.3, 1.0),
    ]
    alone = accuracy_chart(FRAME, "A title")
    assert len(values_of(alone)) == 2 * 4
    assert "published" not in alone.to_json()


def test_each_run_has_a_panel():
    runs = pl.concat(FRAME.select(pl.lit(name).alias("run"), pl.all()) for name in ("x", "y"))
    chart = accuracy_chart(runs, "Both", {"y": ACCURACY}, "two runs").to_dict()
    assert [panel["title"]["text"] for panel in chart["vconcat"]] == ["x", "y"]
    assert [NO_MODEL in str(panel) for panel in chart["vconcat"]] == [False, True]
    assert chart["title"]["subtitle"][0] == "two runs"
