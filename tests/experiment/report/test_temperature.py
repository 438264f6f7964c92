import dataclasses
import re

import numpy as np
import polars as pl
import pytest

from softmax_jax import temperature
from softmax_jax.experiment.measures.refit import BEST_FOR_LENGTH, BEST_OF_ALL, MOST_SETS
from softmax_jax.experiment.measures.runs import FITS
from softmax_jax.experiment.report import temperature as report
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.temperature import ALL_LENGTHS, TRAIN_LENGTHS
from tests.experiment.report.charts import items_of, printed, values_of
from tests.library.test_temperature import drawn_rows

SHIPPED_FITS = {
    name: temperature.TemperatureFit.load(SHIPPED / "paper_float32" / FITS[name])
    for name in (ALL_LENGTHS, TRAIN_LENGTHS)
}


def test_fits_are_printed_with_their_numbers():
    text = printed(report.print_fits, SHIPPED_FITS)
    lines = [" ".join(re.findall(r"[^\s│]+", line)) for line in text.splitlines()]
    for fit in SHIPPED_FITS.values():
        powers = range(len(fit.coefficients) - 1, -1, -1)
        for power, coefficient, (low, high) in zip(powers, fit.coefficients, fit.intervals or [], strict=True):
            assert f"{power} {coefficient:.6g} {low:.4g} … {high:.4g}" in lines
        assert f"R² on held-out sets {fit.r_squared:.2f}" in text
    assert "covered by adaptive_refit_train" in text


def compared_frame(accuracies, lengths):
    """The frame of three seeds, whose accuracies differ more where they are higher."""
    rows = [
        (name, n, seed, value + (0.1 + 0.01 * value) * seed, 1.5)
        for name, value in accuracies.items()
        for n in lengths
        for seed in (0, 1, 2)
    ]
    return pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy", "loss"], orient="row")


def test_a_wide_comparison_breaks_into_tables_without_cutting_cells():
    lengths = [2**power for power in range(1, 15)]
    accuracies = {"softmax": 40.0, "adaptive": 50.0, "adaptive_refit": 60.0, BEST_FOR_LENGTH: 70.0}
    text = ""
    for width in (80, 200):
        text = printed(report.print_comparison, compared_frame(accuracies, lengths), width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert items_of(text) == lengths
    assert re.search(r"adaptive_refit +accuracy.*\n.*\n.*\n +share( +67)+ *\n +p ", text)
    near = {"softmax": 99.0, "adaptive": 99.5, BEST_FOR_LENGTH: 99.9}  # less than a point to gain
    assert " share " not in printed(report.print_comparison, compared_frame(near, [4])).split("accuracy: %")[0]


def test_the_published_curve_stands_beside_a_fit_and_the_table_says_where_its_band_holds_it():
    band = {"entropy": [0.0, 9.0], "low": [1.2, 1.2], "high": [1.3, 1.3]}
    fit = dataclasses.replace(SHIPPED_FITS[ALL_LENGTHS], coefficients=[1.25], entropy_range=[0.9, 2.1], band=band)
    text = printed(report.print_published, {"mine": fit}, width=120)
    cells = {line.strip().split("  ")[0]: line.split()[-9:] for line in text.splitlines() if line.strip()}
    assert cells["published"] == ["0.43", "1.27", "1.85", "2.10", "2.20", "2.25", "2.31", "2.39", "2.42"]
    assert cells["mine"] == ["–", "1.25", "1.25", "1.25", "–", "–", "–", "–", "–"]
    assert cells["holds the published"] == ["–", "yes", "no", "no", "–", "–", "–", "–", "–"]


@pytest.mark.full
def test_a_fit_that_is_a_constant_or_softmax_is_called_so():
    fit = dataclasses.replace(SHIPPED_FITS[ALL_LENGTHS], entropy_range=[1.0, 2.0], coefficients=[6.5])
    assert report.kind(fit) == "a constant: β = 6.5"
    below = dataclasses.replace(fit, coefficients=[0.1, 0.5], beta_at_ends=[0.6, 0.7])
    assert report.kind(below) == "β at most 1 (from 0.6 to 0.7), so 1 by rule: softmax"
    without = report.entropy_chart({32: drawn_rows(0, seeds=2, rows=6)}, {})
    assert "nothing is fitted" in without.to_dict()["title"]["text"]
    assert {row["curve"] for row in values_of(without) if "curve" in row} == {"adaptive"}


@pytest.mark.full
def test_the_chart_shows_every_curve_with_its_band_and_its_data_every_row():
    rows = {32: drawn_rows(0, seeds=2, rows=30), 64: drawn_rows(1, seeds=2, rows=30)}
    points = [row for row in values_of(report.entropy_chart(rows, SHIPPED_FITS)) if {"curve", "entropy"} <= row.keys()]
    curves = report.curves(SHIPPED_FITS)
    assert list(curves) == ["adaptive", ALL_LENGTHS, TRAIN_LENGTHS]
    assert curves["adaptive"](np.array([0.4, 9.0])).tolist() == [1, 1]
    assert curves[ALL_LENGTHS](np.array([9.0])) == pytest.approx(SHIPPED_FITS[ALL_LENGTHS].beta_at_ends[1])
    for name, curve in curves.items():
        line = np.array([(row["entropy"], row["value"]) for row in points if row["curve"] == name and "value" in row])
        assert len(line) == 241
        np.testing.assert_allclose(line[:, 1], curve(line[:, 0]), rtol=1e-3)
    for name, fit in SHIPPED_FITS.items():
        band = [row["low"] for row in points if row["curve"] == name and "low" in row]
        np.testing.assert_allclose(band, np.clip((fit.band or {})["low"], *report.BETA_RANGE), rtol=1e-3)
    frame, last = report.row_frame(rows, [3, 4]), rows[64]
    assert len(frame) == sum(at_length.entropy.size for at_length in rows.values())
    numbers = (last.entropy[1, -1], last.theta[1, -1], bool(last.border[1, -1]))
    assert frame.row(-1, named=True) == dict(zip(("n", "seed", "entropy", "theta", "on_border"), (64, 4, *numbers)))


def test_the_answer_names_gains_range_and_the_published_curve():
    lengths = SHIPPED_FITS[ALL_LENGTHS].lengths
    fits = {ALL_LENGTHS: dataclasses.replace(SHIPPED_FITS[ALL_LENGTHS], used={str(n): 50.0 for n in lengths})}
    rows = dict.fromkeys(lengths, drawn_rows(0, seeds=2, rows=30))
    accuracies = {"softmax": 40.0, ALL_LENGTHS: 60.0, BEST_OF_ALL: 59.0}
    fitted, gains, holding, published = report.answers(fits, rows, compared_frame(accuracies, [16, 64]), 4, 64)
    assert fitted.startswith(f"Fitted to {30 * len(lengths):,} rows")
    assert "a polynomial of degree 4, β from " in fitted
    assert "+20.20 ± 0.50 (beyond chance) points over softmax and +1.01 ± 0.02 (beyond chance)" in gains
    worse = compared_frame(accuracies | {BEST_OF_ALL: 61.0}, [16, 64])
    assert "-1.01 ± 0.02 (beyond chance) points over one constant θ" in report.answers(fits, rows, worse, 4, 64)[1]
    assert re.match(r"It holds from \d\.\d\d to \d\.\d\d nats", holding)
    assert re.search(r"holds the published polynomial at \d of \d entropies", published)
    flat = dataclasses.replace(fits[ALL_LENGTHS], coefficients=[0.1, 0.5], entropy_range=[1.0, 2.0])
    table = compared_frame(accuracies, [16, 64])
    nothing, of_halves = report.answers({ALL_LENGTHS: flat}, rows, table, 4, 64)
    assert nothing.startswith("The fit changes nothing: ")
    assert of_halves.startswith("The table has other fits: on fresh sets, in the mean of 2 lengths, fits to one half")
    assert report.answers({ALL_LENGTHS: flat}, rows, table.filter(seed=0), 4, 64) == [nothing]
    constant = dataclasses.replace(fits[ALL_LENGTHS], coefficients=[2.65], entropy_range=[0.5, 2.0])
    said = report.what_was_fitted(constant, rows, 4, 64)
    assert "too few for a curve, so one temperature was fitted: β = 2.65. More sets: --sets 256" in said
    assert "--sets" not in report.what_was_fitted(constant, rows, 4, MOST_SETS // 2)  # as no more are allowed
    alone = compared_frame(accuracies, [16]).filter(seed=0)
    assert "(one seed, so no interval)" in report.gains_of(ALL_LENGTHS, constant, alone)[0]
    assert "share" not in printed(report.print_comparison, alone.filter(n=16)).split("accuracy: %")[0]
