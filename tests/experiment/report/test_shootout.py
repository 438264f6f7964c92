import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats
from rich.console import Console

from softmax_jax.experiment.measures.significance import corrected, half_width
from softmax_jax.experiment.report import shootout as report
from softmax_jax.experiment.report.chart_files import specification, svg
from softmax_jax.experiment.report.shootout import Outcomes
from softmax_jax.normalizers.registry import METHODS, normalizer
from tests.experiment.report.charts import printed, texts_of, values_of

NAMED = {name: normalizer(name) for name in ("softmax", "ssmax", "signed_l1")}
ACCURACIES = {"softmax": [80.0, 82.0, 84.0], "ssmax": [90.0, 91.0, 95.0], "signed_l1": [60.0, 65.0, 61.0]}
LOSSES = {"softmax": 0.5, "ssmax": 0.3, "signed_l1": 0.25}
SECONDS = {"softmax": 3.0, "ssmax": 4.0, "signed_l1": 2.0}
LENGTHS = (32, 128)
COLUMNS = ("accuracy (%)", "test loss", "train loss", "train seconds")


def made(*names, seeds=3, lengths=LENGTHS):
    tests = [
        (name, length, seed, ACCURACIES[name][seed] - 0.1 * index, LOSSES[name] + 0.01 * seed)
        for name in names
        for index, length in enumerate(lengths)
        for seed in range(seeds)
    ]
    losses = [
        (name, seed, epoch, loss)
        for name in names
        for seed in range(seeds)
        for epoch, loss in enumerate((1.0, 0.5, LOSSES[name] / 2 + 0.01 * seed), 1)
    ]
    learned = {"s": np.array([[[1.0, 2.0], [0.25, 0.75]]] * seeds)}
    return Outcomes(
        pl.DataFrame(tests, ["normalizer", "n", "seed", "accuracy", "loss"], orient="row"),
        pl.DataFrame(losses, ["normalizer", "seed", "epoch", "loss"], orient="row"),
        {name: learned if name == "ssmax" else {} for name in names},
        {name: SECONDS[name] for name in names},
    )


OUTCOMES = made(*NAMED)


def cells(table):
    """The cells of each row by its first, under the headers of their columns."""
    headers = [column.header for column in table.columns]
    rows = zip(*(column.cells for column in table.columns))
    return {row[0]: dict(zip(headers[1:], row[1:])) for row in rows}


def test_formulas_come_with_numbers_and_sources_and_weights_with_their_sum():
    rows = cells(report.formula_table(["softmax", "entmax(alpha=1.2)"]))
    assert rows["softmax"]["formula"] == METHODS["softmax"].entry.formula
    assert [row["numbers"] for row in rows.values()] == ["none", "alpha = 1.2"]
    assert rows["entmax(alpha=1.2)"]["source"] == METHODS["entmax"].entry.source
    scores = (0.0, 1.0, -2.0)
    rows = cells(report.weight_table(NAMED, scores, "A row"))
    assert list(rows) == list(NAMED)
    weights = np.exp(scores) / np.exp(scores).sum()
    assert list(rows["softmax"].values()) == [*(f"{weight:.3f}" for weight in weights), "1.000"]


@pytest.mark.full
def test_the_sweep_weighs_rows_of_each_length_as_if_nothing_were_masked():
    lengths = (1, 4, 9, 33)
    swept = report.sweep(NAMED, lengths)
    for name, weights in swept.items():
        for n, weight in zip(lengths, weights):
            logits = np.where(np.arange(n) == 0, 3.0, 0.5 * np.cos(0.1 * np.arange(n))).astype(np.float32)
            assert weight == pytest.approx(float(NAMED[name](jnp.asarray(logits))[0]), abs=1e-6)
    row = cells(report.sweep_table(swept, lengths))["softmax"]
    assert row == {str(lengths[index]): f"{swept['softmax'][index]:.4f}" for index in (0, 2, 3)}


def test_results_are_means_with_intervals_and_tests_and_the_best_of_each_column_is_marked():
    rows = cells(report.results_table(OUTCOMES, 32))
    half = scipy.stats.t.ppf(0.975, 2) * np.std(ACCURACIES["softmax"], ddof=1) / np.sqrt(3)
    starts = dict(zip(COLUMNS, (f"82.00±{half:.2f}", "0.5100±", "0.2600±", "3.0")))
    assert all(rows["softmax"][column].startswith(start) for column, start in starts.items())
    assert (rows["ssmax"]["learned"], rows["softmax"]["learned"]) == ("s = 1.50, 0.50", "–")
    for column, winner in zip(COLUMNS, ("ssmax", "signed_l1", "signed_l1", "signed_l1")):
        assert [name for name in rows if rows[name][column].startswith("* ")] == [winner]
    others = ("ssmax", "signed_l1")
    alone = [scipy.stats.ttest_rel(ACCURACIES[name], ACCURACIES["softmax"]).pvalue for name in others]  # pyright: ignore[reportAttributeAccessIssue]
    assert [rows[name]["p"] for name in others] == [f"{p:.2g}" for p in corrected(alone)]
    without = cells(report.results_table(made(*others), 32))
    assert {row["p"] for row in (rows["softmax"], *without.values())} == {"–"}
    by_length = cells(report.lengths_table(OUTCOMES))
    assert list(by_length) == list(NAMED)
    assert [by_length["ssmax"][n].split("±")[0] for n in ("32", "128")] == ["92.0", "91.9"]


def test_equal_bests_are_all_marked_and_one_seed_has_neither_interval_nor_p():
    alone = made("ssmax")
    tests, losses = (pl.concat([frame, frame.with_columns(normalizer=pl.lit("twin"))]) for frame in alone[:2])
    twins = Outcomes(tests, losses, {"ssmax": {}, "twin": {}}, {"ssmax": 4.0, "twin": 4.0})
    rows = cells(report.results_table(twins, 32))
    assert all(row[column].startswith("* ") for row in rows.values() for column in COLUMNS)
    single = made(*NAMED, seeds=1)
    for table in (report.results_table(single, 32), report.lengths_table(single)):
        table.caption = None
        assert "±" not in printed(Console.print, table, width=200)
    assert {row["p"] for row in cells(report.results_table(single, 32)).values()} == {"–"}


@pytest.mark.full
def test_charts_say_what_they_show_and_all_looks_are_printed():
    swept, outcomes = report.sweep(NAMED), report.outcome_charts(OUTCOMES, 32)
    charts = report.look_charts(NAMED, swept) | outcomes
    assert set(charts) == {"weights", "rows", "sweep", "accuracy", "losses", "lengths"}
    for chart in charts.values():
        assert "ssmax" in texts_of(svg(specification(chart)))
    assert "lengths" not in report.outcome_charts(made("softmax", lengths=(32,)), 32)
    half = half_width(ACCURACIES["softmax"]) or 0
    bars, *curves = map(values_of, outcomes.values())
    ends = {"low": pytest.approx(82 - half, rel=1e-5), "high": pytest.approx(82 + half, rel=1e-5)}
    assert bars[0] == {"normalizer": "softmax", "value": 82.0} | ends
    assert all(0 <= point["low"] <= point["value"] <= point["high"] <= 100 for curve in curves for point in curve)
    text = printed(report.print_looks, NAMED, swept, width=200)
    titles = ("What each computes", "Ten logits", "A concentrated row", "A diffuse row", "Largest weight by length")
    assert all(title in text for title in titles)
    assert "…" not in text
