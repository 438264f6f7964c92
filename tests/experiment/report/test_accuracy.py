"""Accuracies beside the published ones, in a chart and in the table of every measure."""

import polars as pl
import pytest
import scipy.stats

from softmax_jax.experiment.report.accuracy import (
    ACCURACY,
    accuracy_chart,
    cells_frame,
    compare,
    difference_chart,
    mean_gain,
    print_evaluation,
    verdict,
)
from tests.experiment.report.charts import printed, values_of

PUBLISHED = ACCURACY["softmax"]
FRAME = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "accuracy": accuracy + spread * (seed - 2) + 0.5}
        for name, spread in (("softmax", 0.5), ("hardmax", 1.0))
        for n, accuracy in ((16, 99.0), (64, 90.0))
        for seed in range(3)
    ]
)


def summary(*rows):
    columns = ("normalizer", "n", "accuracy", "interval", "loss", "calibration", "p_value")
    return pl.DataFrame(rows, columns, orient="row").with_columns(gain=0.5, gain_interval=0.25)


def numbers_of(text, name):
    """The numbers of each row that stands under this name."""
    lines = [line for line in text.splitlines() if line.strip()]
    (start,) = [index for index, line in enumerate(lines) if line.startswith(f" {name}  ")]
    first, *others = lines[start : start + 7]
    rows = [first[len(name) + 1 :], *others]
    ends = [index for index, row in enumerate(rows) if index and not row.startswith("    ")]
    return {row.split()[0]: row.split()[1:] for row in rows[: min(ends, default=7)]}


def test_numbers_stand_under_their_length_and_those_that_are_not_there_are_left_out():
    rows = [("softmax", 16, 98.7, 0.11, 0.05, 1.23, None), ("softmax", 32, 96.1, 0.21, 0.15, 2.34, None)]
    rows += [("adaptive", 16, 98.6, None, 0.04, 3.45, 0.4), ("adaptive", 32, 97.3, None, 0.14, 4.56, 0.002)]
    text = printed(print_evaluation, summary(*rows))
    assert numbers_of(text, "softmax") == {
        "accuracy": ["98.70", "96.10"],
        "±": ["0.11", "0.21"],
        "loss": ["0.050", "0.150"],
        "calibration": ["1.23", "2.34"],
        "gain": ["+0.50", "+0.50"],
        "±gain": ["0.25", "0.25"],
    }
    adaptive = numbers_of(text, "adaptive")
    assert (adaptive["p"], "±" in adaptive) == (["0.4", "0.002"], False)
    # An unconfirmed cell has a star.
    published = {"accuracy": ["98.6", "97.1*"], "difference": ["+0.1", "-1.0"], "agrees": ["yes", "yes"]}
    assert numbers_of(text, "softmax, published") == published


def test_lengths_that_do_not_fit_the_width_go_to_further_tables():
    lengths = [2**power for power in range(1, 15)]
    rows = [("softmax", n, 90.0, 0.1, 0.5, 1.0, None) for n in lengths]
    text = printed(print_evaluation, summary(*rows), width=80)
    assert max(map(len, text.splitlines())) <= 80
    headers = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("items")]
    assert [int(n) for header in headers for n in header] == lengths


def test_cells_agree_within_the_interval_or_the_margin_and_those_without_a_source_are_counted_apart():
    ours = summary(
        ("softmax", 16, 97.0, 0.1, 0.05, 1.0, None),  # 1.6 below, the interval too narrow
        ("softmax", 64, 92.0, 2.4, 0.05, 1.0, None),  # 2.3 below, within the interval
        ("softmax", 256, 82.7, None, 0.05, 1.0, None),  # 1.4 above, of one seed
        ("softmax", 17, 0.0, 0.1, 0.05, 1.0, None),  # not published
    )
    cells = compare(ours, PUBLISHED)
    compared = [(cell.n, round(cell.difference, 6), cell.agrees) for cell in cells]
    assert compared == [(16, -1.6, False), (64, -2.3, True), (256, 1.4, True)]
    agreeing = verdict({"softmax": cells, "adaptive": []})
    assert agreeing == "2 of 3 cells agree with the published; mean squared difference: softmax 3.3"
    both = compare(summary(("softmax", 16, 98.6, 0.1, 0, 0, None), ("softmax", 32, 90.0, 0.1, 0, 0, None)), PUBLISHED)
    assert verdict({"softmax": both}).startswith("1 of 1 cells agree with the published, and 0 of 1 without a source")
    assert verdict({"softmax": both[:1]}).startswith("1 of 1 cells agree with the published; ")


def test_differences_are_drawn_with_their_intervals_below_the_ceiling_of_rounding():
    compared = {"softmax": compare(summary(("softmax", 16, 97.0, 0.1, 0, 0, None)), PUBLISHED)}
    for precision, layers in (("bfloat16", 4), ("float32", 3)):
        chart = difference_chart(cells_frame({"softmax": PUBLISHED}, compared, precision))
        _, row, *_ = values_of(chart)
        assert len(chart.to_dict()["layer"]) == layers
        assert (row["low"], row["difference"], row["high"]) == pytest.approx((-1.7, -1.6, -1.5))


def test_the_mean_gain_is_one_test_over_the_published_lengths():
    gains = {0: 0.0, 1: 2.0, 2: 3.5}  # a seed that gains nothing is not counted as one that gains
    rows = [
        (name, n, seed, 50.0 + seed + (gain + (n == 64) - (n == 16) if name == "adaptive" else 0))
        for name in ("softmax", "adaptive", "hardmax")
        for n in (16, 64, 5)
        for seed, gain in gains.items()
    ]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    _, p = scipy.stats.ttest_1samp(list(gains.values()), 0)
    assert mean_gain(frame, PUBLISHED) == (
        "adaptive gains 1.83 ± 4.36 points over softmax in the mean of 2 lengths, from 16 to 64 items: "
        f"p = {p:.1g}, 2 of 3 seeds gain"
    )
    assert mean_gain(frame.filter(normalizer="softmax"), PUBLISHED) is None


def test_the_chart_has_bands_within_0_and_100_and_the_published_rows_dashed_and_softmax_first():
    bands, line, *_ = accuracy_chart(FRAME, "A title").to_dict()["layer"]
    drawn = {(row["normalizer"], row["n"]): row for row in bands["data"]["values"]}
    softmax, hardmax = drawn["softmax", 16], drawn["hardmax", 64]
    assert (softmax["low"], softmax["high"]) == (pytest.approx(99 - 4.3027 * 0.5 / 3**0.5, abs=1e-3), 100.0)
    assert hardmax["high"] - hardmax["value"] == pytest.approx(hardmax["value"] - hardmax["low"])
    assert drawn["adaptive, published", 64]["value"] == 94.5
    assert next(row["normalizer"] for row in line["data"]["values"]) == "softmax"
    dashes = line["encoding"]["strokeDash"]["scale"]
    names = ["softmax", "hardmax", "softmax, published", "adaptive, published"]
    assert dict(zip(dashes["domain"], dashes["range"])) == dict(zip(names, [[1, 0], [1, 0], [6, 4], [6, 4]]))
    assert len(values_of(accuracy_chart(FRAME, "A title", {}))) == 2 * 4


def test_each_run_has_a_panel():
    runs = pl.concat(FRAME.select(pl.lit(name).alias("run"), pl.all()) for name in ("x", "y"))
    chart = accuracy_chart(runs, "Both", {}, "two runs").to_dict()
    assert [panel["title"]["text"] for panel in chart["vconcat"]] == ["x", "y"]
    assert (chart["title"]["text"], chart["title"]["subtitle"]) == ("Both", ["two runs"])
