import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats

from softmax_jax.experiment.measures.evaluation import Measured
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import lengths_to_show
from softmax_jax.experiment.measures.significance import detectable
from softmax_jax.experiment.measures.table import EVALUATION, Measure, Seen, values_of as values_of_set
from softmax_jax.experiment.report.accuracy import (
    ACCURACY,
    accuracy_chart,
    cells_frame,
    compare,
    difference_chart,
    mean_gain,
    print_evaluation,
    remarks,
    verdict,
)
from softmax_jax.experiment.report.findings import Evaluated, accuracy_table, falls, helps, show, why, write
from softmax_jax.experiment.report.page import result_table
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from tests.experiment.report.charts import printed, values_of


def summary(*rows):
    columns = ("normalizer", "n", "accuracy", "interval", "loss", "calibration", "p_value")
    return pl.DataFrame(rows, columns, orient="row").with_columns(gain=0.5, gain_interval=0.25)


PUBLISHED = ACCURACY["softmax"]
SUMMARY = summary(
    ("softmax", 16, 98.7, 0.11, 0.05, 1.23, None),
    ("softmax", 32, 96.1, 0.21, 0.15, 2.34, None),
    ("adaptive", 16, 98.6, None, 0.04, 3.45, 0.4),
    ("adaptive", 32, 97.3, None, 0.14, 4.56, 0.002),
)
FRAME = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "accuracy": accuracy + spread * (seed - 2) + 0.5}
        for name, spread in (("softmax", 0.5), ("hardmax", 1.0))
        for n, accuracy in ((16, 99.0), (64, 90.0))
        for seed in range(3)
    ]
)


def numbers_of(text, name):
    """The numbers of each row that stands under this name."""
    lines = [line for line in text.splitlines() if line.strip()]
    (start,) = [index for index, line in enumerate(lines) if line.startswith(f" {name}  ")]
    first, *others = lines[start : start + 7]
    rows = [first[len(name) + 1 :], *others]
    ends = [index for index, row in enumerate(rows) if index and not row.startswith("    ")]
    return {row.split()[0]: row.split()[1:] for row in rows[: min(ends, default=7)]}


def test_numbers_stand_under_their_length_and_those_that_are_not_there_are_left_out():
    text = printed(print_evaluation, SUMMARY)
    assert numbers_of(text, "softmax") == {
        "accuracy": ["98.70", "96.10"],
        "±": ["0.11", "0.21"],
        "loss": ["0.050", "0.150"],
        "calibration": ["1.23", "2.34"],
        "gain": ["+0.50", "+0.50"],
        "±gain": ["0.25", "0.25"],
    }
    assert numbers_of(text, "adaptive")["p"] == ["0.4", "0.002"]
    assert "±" not in numbers_of(text, "adaptive")
    # An unconfirmed cell has a star.
    published = {"accuracy": ["98.6", "97.1*"], "difference": ["+0.1", "-1.0"], "agrees": ["yes", "yes"]}
    assert numbers_of(text, "softmax, published") == published


def test_cells_agree_within_the_interval_or_the_margin():
    ours = summary(
        ("softmax", 16, 97.0, 0.1, 0.05, 1.0, None),  # 1.6 below, the interval too narrow
        ("softmax", 64, 92.0, 2.4, 0.05, 1.0, None),  # 2.3 below, within the interval
        ("softmax", 256, 82.7, None, 0.05, 1.0, None),  # 1.4 above, of one seed
        ("softmax", 17, 0.0, 0.1, 0.05, 1.0, None),  # not published
    )
    cells = compare(ours, ACCURACY["softmax"])
    told = [(cell.n, round(cell.difference, 6), cell.agrees) for cell in cells]
    assert told == [(16, -1.6, False), (64, -2.3, True), (256, 1.4, True)]
    said = verdict({"softmax": cells, "adaptive": []})
    assert said == "2 of 3 cells agree with the published; mean squared difference: softmax 3.3"


def test_cells_without_a_source_are_counted_apart():
    of_both = compare(
        summary(("softmax", 16, 98.6, 0.1, 0, 0, None), ("softmax", 32, 90.0, 0.1, 0, 0, None)), PUBLISHED
    )
    said = verdict({"softmax": of_both})
    assert said.startswith("1 of 1 cells agree with the published, and 0 of 1 without a source that could be read; ")


def test_the_mean_gain_is_one_test_over_the_published_lengths():
    gains = {0: 1.0, 1: 2.0, 2: 3.5}
    rows = [
        (name, n, seed, 50.0 + seed + (gain + (n == 64) - (n == 16) if name == "adaptive" else 0))
        for name in ("softmax", "adaptive", "hardmax")
        for n in (16, 64, 5)
        for seed, gain in gains.items()
    ]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    _, p = scipy.stats.ttest_1samp(list(gains.values()), 0)
    assert mean_gain(frame, PUBLISHED) == (
        "adaptive gains 2.17 ± 3.13 points over softmax in the mean of 2 lengths, from 16 to 64 items: "
        f"p = {p:.1g}, 3 of 3 seeds gain"
    )
    assert mean_gain(frame.filter(normalizer="softmax"), PUBLISHED) is None


SECOND = Measure(lambda seen: -jnp.sort(-seen.weights)[1], "Second largest weight", "of 1", ".2f")


def test_a_new_measure_is_one_entry_that_reaches_every_file_and_table(tmp_path, monkeypatch):
    """A second weight, measured of sets; loss and calibration stay in the full table alone."""
    monkeypatch.setitem(EVALUATION, "second", SECOND)
    row = jnp.array([0.5, 0.25, 0.125, 0.125])
    seen = Seen(row, jnp.int32(0), row[0], row[0], weights=row, where=row > 0)
    assert values_of_set(["second"], seen, jax.tree.map(lambda leaf: leaf[None], seen))["second"].tolist() == [0.25]
    frame = FRAME.with_columns(loss=0.5, second=pl.col("seed") / 10 + (pl.col("normalizer") == "hardmax"))
    measured = [Measured(16, (), (), {"loss": np.ones((1, 4))})]
    run = Evaluated("x", MaxRetrieval(), ("softmax", "hardmax"), measured, frame)
    write(tmp_path, {"lengths": ()}, [run])
    assert pl.read_csv(tmp_path / "evaluation.csv")["second"].to_list() == frame["second"].to_list()
    assert json.loads((tmp_path / "evaluation.json").read_text())["summary"][0]["second"] == pytest.approx(0.1)
    shown = [line.split() for line in printed(show, [run]).splitlines()]
    of_second = [["second", "0.10", "0.10"], ["second", "1.10", "1.10"]]
    assert [line for line in shown if line[:1] == ["second"]] == of_second
    assert "second: Second largest weight, of 1" in printed(show, [run])
    assert not [line for line in shown if line[:1] == ["loss"]]
    # In full, without the calibration that this task has not.
    full = [line.split() for line in printed(show, [run], (), True).splitlines()]
    assert [line for line in full if line[:1] == ["second"]] == of_second
    assert [line for line in full if line[:1] == ["loss"]] == [["loss", "0.500", "0.500"]] * 2
    page = result_table([run])
    assert re.findall(r'scope="row">(.*?, second)</th>\s*<td>(.*?)</td>', page) == [
        ("softmax, second", "0.10"),
        ("hardmax, second", "1.10"),
    ]
    monkeypatch.setitem(EVALUATION, "second", SECOND._replace(tables="none"))
    assert ["second", "0.10", "0.10"] not in [line.split() for line in printed(show, [run]).splitlines()]
    assert ", second<" not in result_table([run])


def test_a_seed_that_gains_nothing_is_not_counted_as_one_that_gains():
    rows = [("softmax", 16, seed, 50.0) for seed in range(3)]
    rows += [("adaptive", 16, seed, 50.0 + gain) for seed, gain in enumerate((0.0, 2.0, 3.5))]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    assert str(mean_gain(frame, PUBLISHED)).endswith("2 of 3 seeds gain")


def shares(logits, axis=-1, where=None):
    """Weights in proportion to logits above 0."""
    above = jnp.where(logits > 0 if where is None else where, jnp.maximum(logits, 0), 0)
    return above / jnp.maximum(above.sum(axis, keepdims=True), 1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["softmax", "softpick", "hardmax", "sink_softmax(sink=1.0)"], "softpick, sink_softmax(sink=1.0)"),
        (["softmax", "hardmax", "entmax15"], "none"),
        (["softpick, as trained", "softmax", "softmax1"], "none"),
        (["ssmax", "ssmax(s=0.4, cap=30)"], "ssmax(s=0.4, cap=30)"),
        (["jax.nn:softmax", f"{__name__}:shares", "the true item alone"], f"{__name__}:shares"),
    ],
)
def test_rows_that_depend_on_an_offset_of_the_logits_are_named(names, named):
    told = [remark.split(": ")[0] for remark in remarks(names)]
    assert (told or ["none"]) == [named]


@pytest.mark.full
def test_lengths_that_do_not_fit_the_width_go_to_further_tables():
    many = [("softmax", 2**power, 90.0, 0.1, 0.5, 1.0, None) for power in range(1, 15)]
    text = printed(print_evaluation, summary(*many), width=80)
    assert max(map(len, text.splitlines())) <= 80
    headers = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("items")]
    assert [int(n) for header in headers for n in header] == [2**power for power in range(1, 15)]


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


def run_of(normalizers, lengths=(16, 64), name="x"):
    """A run of three seeds, whose accuracies at each length lie so far above or below 90 % under each normalizer."""
    rows = [
        (normalizer, n, seed, 90.0 + of_seeds[seed])
        for n in lengths
        for normalizer, of_seeds in normalizers.items()
        for seed in range(3)
    ]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    return Evaluated(name, MaxRetrieval(), tuple(normalizers), [], frame)


ROW = {"ssmax": (2.0, 2.1, 2.2), "softmax": (0.0, 0.1, 0.3), "softpick": (0.0, 0.1, 0.3), "hardmax": (-1.0, 0.3, 1.2)}


def test_the_table_begins_with_the_baseline_marks_gains_beyond_chance_and_names_what_is_the_same():
    rows, notes = accuracy_table([run_of(ROW)], [16, 64])
    names = ["softmax", "softmax, published", "ssmax", "ssmax, gain", "hardmax", "hardmax, gain"]
    assert list(rows) == names
    assert rows["softmax"] == ["90.1±0.4"] * 2
    assert rows["softmax, published"] == ["98.6", "94.3"]
    assert rows["ssmax, gain"] == ["+2.0±0.1*"] * 2
    assert rows["hardmax, gain"][0].startswith("+0.0±")
    assert notes[0] == "same as softmax: softpick"


def test_a_run_that_was_trained_under_another_normalizer_is_about_that_and_holds_nothing_against_the_paper():
    run = run_of({"ssmax, as trained": (0.0, 0.1, 0.3), "softmax": (-5.0, -5.1, -4.9)}, name="mine")
    rows, notes = accuracy_table([run, run_of({"softmax": (0.0, 0.1, 0.3)})], [16])
    assert list(rows) == [
        "mine: ssmax, as trained",
        "mine: softmax",
        "mine: softmax, gain",
        "x: softmax",
        "x: softmax, published",
    ]
    assert "gain: points over the normalizer of the training" in notes[0] + notes[1]
    text = printed(show, [run])
    assert "attention with ssmax answers 90.1 %" in text
    assert "The paper" not in text


def test_a_star_stands_at_the_gains_whose_p_is_below_5_percent():
    run = run_of({"softmax": (0.0, 0.1, 0.3), "ssmax": (2.0, 2.1, 2.2), "entmax15": (1.0, 2.6, 0.4)})
    rows, _ = accuracy_table([run], [16, 64])
    p = {row["normalizer"]: row["p_value"] for row in run.summary.to_dicts()}
    assert p["ssmax"] < 0.05 < p["entmax15"] < 1
    assert [cell.endswith("*") for cell in rows["ssmax, gain"]] == [True] * 2
    assert [cell.endswith("*") for cell in rows["entmax15, gain"]] == [False] * 2


def test_what_is_lost_where_hardmax_does_worse_is_lost_by_the_key_and_the_value():
    run = run_of({"softmax": (-40.0,) * 3, "hardmax": (-50.0,) * 3, TRUE_ITEM: (0.0,) * 3})
    assert (
        "All weight on the largest logit (hardmax) does no better: nothing is lost to dispersion. The key, which gives "
        "another item the largest logit, loses 40.0 points, and the value, which is misread under any weights, 10.0."
    ) in why(run)


def test_what_helps_is_said_of_weights_that_depend_on_no_offset():
    run = run_of({"softmax": (0.0, 0.1, 0.3), "softpick": (8.0, 8.1, 8.2), "ssmax": (2.0, 2.1, 2.2)})
    assert "ssmax wins back most: 2.0 points" in str(helps(run))


def test_what_would_have_been_found_is_the_gain_that_the_test_finds_under_each_normalizer():
    run = run_of({"softmax": (0.0, 0.1, 0.3), "ssmax": (0.2, 0.0, 0.3), "entmax15": (3.0, -3.0, 1.0)})
    least = max(detectable(gains) or 0 for gains in ([0.2, -0.1, 0.0], [3.0, -3.1, 0.7]))
    assert f"A gain of {least:.1f} points at one length would have been found in 4 of 5 tests." in str(helps(run))


def test_what_falls_is_said_from_the_longest_length_of_training_on():
    accuracies = {"softmax": (9.0, 9.0, 9.0)}
    rows = [*run_of(accuracies, (4, 8)).frame.rows(), *run_of({"softmax": (5.0, 5.0, 5.0)}, (16,)).frame.rows()]
    rows += run_of({"softmax": (-40.0, -40.0, -40.0)}, (64,)).frame.rows()
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    run = Evaluated("x", MaxRetrieval(), ("softmax",), [], frame)
    assert MaxRetrieval().longest == 16
    assert falls(run).endswith("answers 95.0 % of the sets of 16 items right, and 50.0 % of those of 64.")


def test_softmax_alone_at_one_length_has_nothing_that_helps():
    text = printed(show, [run_of({"softmax": (0.0, 0.1, 0.3)}, [16])])
    assert "answers 90.1 % of the sets of 16 items right." in " ".join(text.split())
    assert "What helps" not in text


def test_six_lengths_are_shown_of_those_that_were_asked_for_or_are_long():
    assert lengths_to_show([2**power for power in range(1, 15)], (2, 16), most=3) == [2, 512, 16384]
    assert lengths_to_show([4, 8]) == [4, 8]


def test_all_that_is_printed_fits_the_terminal_and_a_long_name_stands_above_its_cells():
    names = {"adaptive_refit_train": (20.1, 29.0, 11.1), **ROW}
    text = printed(show, [run_of(names, (16, 64, 256, 1024, 4096, 16384))], width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "\nadaptive_refit_train\n" in text


def test_curves_that_coincide_are_one_line_with_all_their_names():
    values = values_of(accuracy_chart(run_of(ROW).frame, "A title", {}))
    assert {row["normalizer"] for row in values} == {"ssmax", "softmax, softpick", "hardmax"}


def test_differences_from_the_published_have_the_interval_of_ours_and_say_how_many_agree():
    run = run_of({"softmax": (4.0, 4.1, 4.5)}, (16, 32, 64))
    chart = difference_chart(cells_frame(run.published, run.compared, "bfloat16"))
    assert chart.to_dict()["title"]["text"] == "1 of 2 accuracies agree with the published"
    drawn = {row["n"]: row for row in values_of(chart) if "n" in row}
    assert (drawn[16]["difference"], drawn[32]["sourced"]) == (pytest.approx(-4.4), False)
    assert drawn[16]["above"] == pytest.approx(98.62 - 98.6, abs=0.005)  # a ceiling of 98.62 %
    assert drawn[64]["high"] - drawn[64]["difference"] == pytest.approx(4.3027 * 0.26458 / 3**0.5, abs=1e-3)
