import polars as pl
import pytest

from softmax_jax.report.accuracy import ACCURACY, accuracy_chart, compare, of_an_offset, print_evaluation, verdict
from tests.report.charts import printed


def summary(*rows):
    columns = ("normalizer", "n", "accuracy", "interval", "loss", "calibration", "p_value")
    return pl.DataFrame(rows, columns, orient="row")


SUMMARY = summary(
    ("softmax", 16, 98.7, 0.11, 0.05, 1.23, None),
    ("softmax", 32, 96.1, 0.21, 0.15, 2.34, None),
    ("adaptive", 16, 98.6, 0.12, 0.04, 3.45, 0.4),
    ("adaptive", 32, 97.3, 0.22, 0.14, 4.56, 0.002),
)
FRAME = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "accuracy": accuracy + spread * (seed - 1)}
        for name, spread in (("softmax", 0.5), ("hardmax", 1.0))
        for n, accuracy in ((16, 99.0), (64, 90.0))
        for seed in range(3)
    ]
)


def numbers_of(text, name):
    """The numbers of each row that stands under this name."""
    lines = [line for line in text.splitlines() if line.strip()]
    (start,) = [index for index, line in enumerate(lines) if line.startswith(f" {name}  ")]
    first, *others = lines[start : start + 5]
    rows = [first[len(name) + 1 :], *others]
    ends = [index for index, row in enumerate(rows) if index and not row.startswith("    ")]
    return {row.split()[0]: row.split()[1:] for row in rows[: min(ends, default=5)]}


def test_accuracy_interval_loss_and_p_stand_under_their_length():
    text = printed(print_evaluation, SUMMARY)
    assert numbers_of(text, "softmax") == {
        "accuracy": ["98.70", "96.10"],
        "±": ["0.11", "0.21"],
        "loss": ["0.050", "0.150"],
        "calibration": ["1.23", "2.34"],
    }
    assert numbers_of(text, "adaptive")["accuracy"] == ["98.60", "97.30"]
    assert numbers_of(text, "adaptive")["p"] == ["0.4", "0.002"]


@pytest.mark.full
def test_published_rows_mark_the_unconfirmed_cells_and_show_the_difference():
    text = printed(print_evaluation, SUMMARY)
    assert numbers_of(text, "softmax, published") == {
        "accuracy": ["98.6", "97.1*"],
        "difference": ["+0.1", "-1.0"],
        "agrees": ["yes", "yes"],
    }
    assert numbers_of(text, "adaptive, published")["difference"] == ["+0.0", "+0.2"]


def test_cells_agree_within_the_interval_or_the_margin():
    ours = summary(
        ("softmax", 16, 97.0, 0.1, 0.05, 1.0, None),  # 1.6 below, the interval too narrow
        ("softmax", 64, 92.0, 2.4, 0.05, 1.0, None),  # 2.3 below, within the interval
        ("softmax", 256, 82.7, None, 0.05, 1.0, None),  # 1.4 above, of one seed
        ("softmax", 17, 0.0, 0.1, 0.05, 1.0, None),  # not published
    )
    cells = compare(ours, ACCURACY["softmax"])
    assert [(cell.n, round(cell.difference, 6), cell.agrees) for cell in cells] == [
        (16, -1.6, False),
        (64, -2.3, True),
        (256, 1.4, True),
    ]
    assert verdict({"softmax": cells, "adaptive": []}).startswith("2 of 3 cells agree with the published: ")
    assert "(± 2.4 or less)" in verdict({"softmax": cells, "adaptive": []})
    assert verdict({"softmax": cells, "adaptive": []}).endswith(": softmax 3.3")


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "named"),
    [
        (
            ["softmax", "adaptive_refit", "softpick", "hardmax", "sink_softmax(sink=1.0)"],
            "softpick, sink_softmax(sink=1.0)",
        ),
        (["softmax", "hardmax", "entmax15"], "none"),
        (["softpick, as trained", "softmax", "softmax1"], "none"),
        (["ssmax", "ssmax(s=0.4, cap=30)"], "ssmax(s=0.4, cap=30)"),
    ],
)
def test_rows_that_depend_on_an_offset_of_the_logits_are_named(names, named):
    assert (of_an_offset(names) or "none: ").split(": ")[0] == named


@pytest.mark.full
def test_lengths_that_do_not_fit_the_width_go_to_further_tables():
    many = [("softmax", 2**power, 90.0, 0.1, 0.5, 1.0, None) for power in range(1, 15)]
    text = printed(print_evaluation, summary(*many), width=80)
    assert max(map(len, text.splitlines())) <= 80
    headers = [line.split()[1:] for line in text.splitlines() if line.strip().startswith("items")]
    assert [int(n) for header in headers for n in header] == [2**power for power in range(1, 15)]


@pytest.mark.full
def test_one_seed_has_no_interval_and_no_p():
    text = printed(print_evaluation, summary(("softmax", 16, 98.7, None, 0.05, 0.3, None)))
    assert list(numbers_of(text, "softmax")) == ["accuracy", "loss", "calibration"]


def test_bands_hold_the_interval_within_0_and_100():
    drawn = accuracy_chart(FRAME, "A title").to_dict()["layer"][0]["data"]["values"]
    bands = {(band["normalizer"], band["n"]): (band["low"], band["value"], band["high"]) for band in drawn}
    assert bands["softmax", 16] == (pytest.approx(99 - 4.3027 * 0.5 / 3**0.5, abs=1e-3), 99.0, 100.0)
    low, value, high = bands["hardmax", 64]
    assert high - value == pytest.approx(value - low)


@pytest.mark.full
def test_softmax_is_drawn_over_all_others():
    drawn = accuracy_chart(FRAME, "A title").to_dict()["layer"][1]["data"]["values"]
    assert drawn[0]["normalizer"] != drawn[-1]["normalizer"] == "softmax"


@pytest.mark.full
def test_both_published_rows_are_dashed():
    line = accuracy_chart(FRAME, "A title").to_dict()["layer"][1]
    dashes = line["encoding"]["strokeDash"]["scale"]
    assert dict(zip(dashes["domain"], dashes["range"])) == {
        "softmax": [1, 0],
        "hardmax": [1, 0],
        "softmax, published": [6, 4],
        "adaptive, published": [6, 4],
    }
    drawn = {(row["normalizer"], row["n"], row["value"]) for row in line["data"]["values"]}
    assert {row for row in drawn if "published" in row[0]} == {
        ("softmax, published", 16, 98.6),
        ("softmax, published", 64, 94.3),
        ("adaptive, published", 16, 98.6),
        ("adaptive, published", 64, 94.5),
    }


@pytest.mark.full
def test_every_line_is_on_until_its_name_is_clicked():
    chart = accuracy_chart(FRAME, "A title", switched=True).to_dict()
    (switch,) = chart["params"]
    assert switch["bind"] == "legend"
    assert switch["select"]["toggle"] == "true"
    names = {"softmax", "hardmax", "softmax, published", "adaptive, published"}
    assert {entry["normalizer"] for entry in switch["value"]} == names
    for layer in chart["layer"]:
        condition = layer["encoding"]["opacity"]["condition"]
        assert condition["param"] == switch["name"]
        assert condition["empty"] is False


@pytest.mark.full
def test_a_picture_has_names_at_the_ends_of_its_lines_and_no_legend():
    chart = accuracy_chart(FRAME, "A title").to_dict()
    assert "params" not in chart
    assert all(layer["encoding"]["color"]["legend"] is None for layer in chart["layer"][:3])
    names = {record["text"] for record in chart["layer"][-1]["data"]["values"]}
    assert names == {"softmax", "hardmax", "softmax, published", "adaptive, published"}
