import math

import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.charts import save_chart
from softmax_jax.report.playground import NORMALIZERS, playground_chart, playground_logits


def test_the_best_item_comes_first_and_the_others_lie_within_the_noise():
    logits = playground_logits(1000, gap=4.0, noise=1.5)
    assert logits[0] == 4.0
    assert np.abs(logits[1:]).max() <= 1.5
    assert np.ptp(logits[1:]) > 2.98
    assert logits[7] == pytest.approx(1.5 * (2 * math.modf(7 * 0.6180339887498949)[0] - 1))


def test_more_items_leave_the_others_where_they_are():
    assert (playground_logits(20, 1.0, 2.0)[:5] == playground_logits(5, 1.0, 2.0)).all()


def test_every_normalizer_to_choose_is_registered_and_the_well_known_are_there():
    assert set(NORMALIZERS) <= METHODS.keys()
    known = {"softmax", "temperature", "adaptive", "ssmax", "softpick", "scalable_softpick", "sparsemax", "entmax15"}
    assert known | {"hardmax", "signed_l1", "length_scaled", "softmax1", "asentmax"} <= set(NORMALIZERS)


def test_the_picture_holds_the_numbers_of_the_package(tmp_path):
    chart = playground_chart("ssmax", n=256, gap=4.0, noise=1.0)
    _, svg = save_chart(chart, tmp_path / "playground")
    logits = jnp.asarray(playground_logits(256, 4.0, 1.0), jnp.float32)
    weights = np.asarray(METHODS["ssmax"].build(s=0.36)(logits))
    entropy = -(weights * np.log(weights)).sum()
    for text in ("256 items", f"entropy {entropy:.3f} nats", f"weight of the best item {weights[0]:.4f}"):
        assert text in svg.read_text()
