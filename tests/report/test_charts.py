"""What all charts of the page have in common."""

import pytest

from softmax_jax.report import accuracy, dispersion
from softmax_jax.report.charts import save_chart
from tests.report import test_accuracy, test_dispersion, test_resolution
from tests.report.charts import OWN_COLOURS, texts_of
from tests.tiers import full_except

GAPS, RESOLUTION = test_resolution.GAPS, test_resolution.RESOLUTION
MARKS = {"measured: 0.5 at n = 20", "forced below 0.5 from n = 90", "softmax at least", "a random item"}
CHARTS = {
    "accuracy": (
        lambda: accuracy.accuracy_chart(test_accuracy.FRAME, "How far?"),
        {"softmax, published", "accuracy (% of sets)", "items in the set", "mean of 3 seeds, 95 % band"},
    ),
    "dispersion": (
        lambda: dispersion.dispersion_chart(test_dispersion.FRAME, test_dispersion.FORCED),
        {"entropy (nats)", "largest weight"} | MARKS,
    ),
    "maps": (
        lambda: dispersion.attention_map_chart(test_dispersion.MAPS),
        {"n = 16384", "softmax", "hardmax", "weight"},
    ),
    "resolution": (lambda: dispersion.resolution_chart(RESOLUTION, (3, 4)), {"ρ", "logit", "class κ"}),
    "gap": (
        lambda: dispersion.gap_chart(GAPS, RESOLUTION, test_resolution.NAMES),
        {"gap in ρ", "error (% of sets)", "hardmax: the answer is wrong", "16384"},
    ),
    "losses": (
        lambda: dispersion.loss_split_chart(test_resolution.LOSSES),
        {"lost (% of sets)", "items in the set", "what costs accuracy", "hardmax"},
    ),
}


@pytest.mark.parametrize("name", full_except(CHARTS, "accuracy"))
def test_a_chart_asks_its_question_with_units_and_legends(name, tmp_path):
    made, texts = CHARTS[name]
    chart = made()
    _, svg = save_chart(chart, tmp_path / "chart")
    assert texts <= texts_of(svg.read_text())
    assert chart.to_dict()["title"]["text"].endswith("?")
    assert not any(colour in chart.to_json(indent=None) for colour in OWN_COLOURS)
