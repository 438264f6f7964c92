import dataclasses
import re

import numpy as np
import polars as pl
import pytest

from softmax_jax import temperature
from softmax_jax.experiment.measures.refit import BEST_FOR_LENGTH
from softmax_jax.experiment.report import temperature as report
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.temperature import ALL_LENGTHS, TRAIN_LENGTHS
from tests.experiment.report.charts import printed, values_of
from tests.library.test_temperature import drawn_rows


@pytest.fixture(scope="module")
def rows():
    return {32: drawn_rows(0, seeds=2, rows=3000), 64: drawn_rows(1, seeds=2, rows=3000)}


@pytest.fixture(scope="module")
def fits(rows):
    every = temperature.fit(rows, rows, seeds=[0, 1])
    short = {32: rows[32]}
    return {ALL_LENGTHS: every, TRAIN_LENGTHS: temperature.fit(short, short, seeds=[0, 1], degree=1)}


@pytest.mark.full
def test_fits_are_printed_with_their_numbers(fits):
    text = printed(report.print_fits, fits)
    for fit in fits.values():
        powers = range(len(fit.coefficients) - 1, -1, -1)
        for power, coefficient, (low, high) in zip(powers, fit.coefficients, fit.intervals, strict=True):
            row = f"{power} {coefficient:.6g} {low:.4g} … {high:.4g}"
            assert row in [" ".join(re.findall(r"[^\s│]+", line)) for line in text.splitlines()]
        assert f"R² on held-out sets {fit.r_squared:.2f}" in text
    assert "covered by adaptive_refit_train" in text


def compared_frame(rows):
    return pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy", "loss"], orient="row")


def test_a_wide_comparison_breaks_into_tables_without_cutting_cells():
    lengths = [2**power for power in range(1, 15)]
    accuracy = {"softmax": 40.0, "adaptive": 50.0, "adaptive_refit": 60.0, BEST_FOR_LENGTH: 70.0}
    compared = [
        (name, n, seed, value + (0.1 + 0.01 * value) * seed, 1.5)
        for name, value in accuracy.items()
        for n in lengths
        for seed in (0, 1, 2)
    ]
    for width in (80, 200):
        text = printed(report.print_comparison, compared_frame(compared), width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        headers = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("items")]
        assert [int(n) for header in headers for n in header] == lengths
    assert re.search(r"adaptive_refit +accuracy.*\n.*\n.*\n +share( +67)+ *\n +p ", text)
    near = {"softmax": 99.0, "adaptive": 99.5, BEST_FOR_LENGTH: 99.9}  # less than a point to gain
    rows = [(name, 4, seed, value, 0.1) for name, value in near.items() for seed in (0, 1)]
    assert " share " not in printed(report.print_comparison, compared_frame(rows)).split("accuracy: %")[0]


@pytest.mark.full
def test_the_published_curve_stands_beside_a_fit_and_the_table_says_where_its_band_holds_it(fits):
    fit = fits[ALL_LENGTHS]
    band = {"entropy": [0.0, 9.0], "low": [1.2, 1.2], "high": [1.3, 1.3]}
    fit = dataclasses.replace(fit, coefficients=[1.25], entropy_range=[0.9, 2.1], band=band)
    text = printed(report.print_published, {"mine": fit}, width=120)
    cells = {line.strip().split("  ")[0]: line.split()[-9:] for line in text.splitlines() if line.strip()}
    assert cells["published"] == ["0.43", "1.27", "1.85", "2.10", "2.20", "2.25", "2.31", "2.39", "2.42"]
    assert cells["mine"] == ["–", "1.25", "1.25", "1.25", "–", "–", "–", "–", "–"]
    assert cells["holds the published"] == ["–", "yes", "no", "no", "–", "–", "–", "–", "–"]


def test_a_run_without_fits_is_drawn_with_the_published_curve_alone():
    numbers = np.full((2, 5), 0.75)
    searched = {
        32: temperature.Rows(numbers, numbers, numbers > 1, numbers, numbers[..., None], numbers[..., None], numbers)
    }
    chart = report.entropy_chart(searched, {})
    title = chart.to_dict()["title"]
    assert title["text"] == "The best temperature by entropy: nothing is fitted to these models yet"
    assert title["subtitle"] == ["grey: each row's own optimum (at the top and bottom edge: none inside the range)"]
    assert {row["curve"] for row in values_of(chart) if "curve" in row} == {"adaptive"}


def test_a_fit_that_is_a_constant_or_softmax_is_called_so():
    fit = temperature.TemperatureFit.load(SHIPPED / "paper" / "temperature.json")
    fit = dataclasses.replace(fit, entropy_range=[1.0, 2.0], coefficients=[6.5])
    assert report.kind(fit) == "a constant: β = 6.5"
    below = dataclasses.replace(fit, coefficients=[0.1, 0.5], beta_at_ends=[0.6, 0.7])
    assert report.kind(below) == "β at most 1 (from 0.6 to 0.7), so 1 by rule: softmax"


@pytest.mark.full
def test_curves_follow_the_rules_of_the_method(fits):
    entropies = np.array([0.1, 0.4, 0.6, 3.0, 9.0])
    curves = report.curves(fits)
    assert list(curves) == ["adaptive", ALL_LENGTHS, TRAIN_LENGTHS]
    for curve in curves.values():
        assert (curve(entropies)[:2] == 1).all()
        assert (curve(entropies) >= 1).all()
    assert curves["adaptive"](entropies)[-1] == 1
    assert curves[ALL_LENGTHS](entropies)[-1] == pytest.approx(fits[ALL_LENGTHS].beta_at_ends[1])


@pytest.mark.full
def test_the_chart_shows_every_curve_with_its_band_and_its_data_every_row(rows, fits):
    points = [row for row in values_of(report.entropy_chart(rows, fits)) if {"curve", "entropy"} <= row.keys()]
    for name, curve in report.curves(fits).items():
        line = np.array([(row["entropy"], row["value"]) for row in points if row["curve"] == name and "value" in row])
        assert len(line) == 241
        np.testing.assert_allclose(line[:, 1], curve(line[:, 0]), rtol=1e-3)
    for name, fit in fits.items():
        band = [row["low"] for row in points if row["curve"] == name and "low" in row]
        assert fit.band is not None
        np.testing.assert_allclose(band, np.clip(fit.band["low"], *report.BETA_RANGE), rtol=1e-3)
    frame, last = report.row_frame(rows, [3, 4]), rows[64]
    assert len(frame) == sum(of_length.entropy.size for of_length in rows.values())
    numbers = (last.entropy[1, -1], last.theta[1, -1], bool(last.border[1, -1]))
    assert frame.row(-1, named=True) == dict(zip(("n", "seed", "entropy", "theta", "on_border"), (64, 4, *numbers)))
