from softmax_jax.measures.evaluation import Summary
from softmax_jax.report.charts import accuracy_chart, save_chart
from tests.report.svg import texts_of

SUMMARIES = [
    Summary(name, n, accuracy, interval, 0.1, 1.0, 0.5, None)
    for name, interval in (("softmax", 1.0), ("hardmax", 2.0))
    for n, accuracy in ((16, 99.0), (64, 90.0))
]


def test_the_chart_is_saved_as_png_and_svg(tmp_path):
    paths = save_chart(accuracy_chart(SUMMARIES, 10, "A title"), tmp_path / "chart")
    png, svg = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    texts = texts_of(svg)
    assert {"A title", "softmax", "hardmax", "softmax, published", "accuracy (% of sets)", "items in the set"} <= texts


def test_bands_hold_the_interval_within_0_and_100():
    band = accuracy_chart(SUMMARIES, 10, "A title").to_dict()["layer"][0]["data"]["values"]
    assert (band[0]["low"], band[0]["high"]) == (98.0, 100.0)
    assert (band[3]["low"], band[3]["high"]) == (88.0, 92.0)


def test_both_published_rows_are_dashed():
    chart = accuracy_chart(SUMMARIES, 10, "A title").to_dict()
    dashes = chart["layer"][2]["encoding"]["strokeDash"]["scale"]
    assert dict(zip(dashes["domain"], dashes["range"])) == {
        "softmax": [1, 0],
        "hardmax": [1, 0],
        "softmax, published": [6, 4],
        "adaptive, published": [6, 4],
    }
    drawn = {(row["normalizer"], row["n"], row["accuracy"]) for row in chart["layer"][2]["data"]["values"]}
    assert drawn == {
        ("softmax, published", 16, 98.6),
        ("softmax, published", 64, 94.3),
        ("adaptive, published", 16, 98.6),
        ("adaptive, published", 64, 94.5),
    }


def test_every_line_is_on_until_its_name_is_clicked():
    chart = accuracy_chart(SUMMARIES, 10, "A title").to_dict()
    (switch,) = chart["params"]
    assert switch["bind"] == "legend"
    assert switch["select"]["toggle"] == "true"
    assert {entry["normalizer"] for entry in switch["value"]} == {
        "softmax",
        "hardmax",
        "softmax, published",
        "adaptive, published",
    }
    for layer in chart["layer"]:
        condition = layer["encoding"]["opacity"]["condition"]
        assert condition["param"] == switch["name"]
        assert condition["empty"] is False
