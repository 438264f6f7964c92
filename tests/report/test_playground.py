import math

import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.charts import svg
from softmax_jax.report.playground import DISTINCT, NORMALIZERS, playground_chart, playground_frame, playground_logits
from tests.report.charts import texts_of


@pytest.mark.full
def test_the_best_item_comes_first_and_the_others_lie_within_the_noise():
    logits = playground_logits(10, gap=4.0, noise=1.5)
    assert len(logits) == 1025
    assert logits[0] == 4.0
    assert np.abs(logits[1:]).max() <= 1.5
    assert np.ptp(logits[1:]) > 2.98
    assert logits[7] == pytest.approx(1.5 * (2 * math.modf(7 * 0.6180339887498949)[0] - 1))


def test_more_items_leave_the_others_where_they_are():
    assert (playground_logits(4, 1.0, 2.0)[:5] == playground_logits(2, 1.0, 2.0)).all()


@pytest.mark.full
def test_a_million_items_have_a_thousand_logits_each_as_often():
    _, *others = playground_logits(20, 1.0, 2.0)
    _, times = np.unique(others, return_counts=True)
    assert set(times) == {2**20 // DISTINCT}


def test_every_normalizer_that_is_shown_is_registered_and_the_well_known_are_there():
    assert set(NORMALIZERS) <= METHODS.keys()
    known = {"softmax", "temperature", "adaptive", "ssmax", "softpick", "scalable_softpick", "sparsemax", "entmax15"}
    assert known | {"hardmax", "signed_l1", "length_scaled", "softmax1", "asentmax"} <= set(NORMALIZERS)


@pytest.mark.full
@pytest.mark.parametrize("log2_others", [8, 12])
def test_the_picture_holds_the_numbers_of_the_package_under_each_normalizer(log2_others):
    drawn = texts_of(svg(playground_chart(log2_others, gap=4.0, noise=1.0)))
    rows = playground_frame(log2_others, gap=4.0, noise=1.0)
    assert rows["normalizer"].to_list() == list(NORMALIZERS)
    shown = {tuple(text.split()[:2]) for text in drawn if text and text.endswith("nats")}
    assert len(shown) > 4
    for _, best, _, entropy in rows.rows():
        apart = [abs(float(one) - best) + abs(float(other) - entropy) for one, other in shown]
        assert min(apart) < 0.011


@pytest.mark.full
def test_the_table_is_what_softmax_gives():
    weights = np.asarray(METHODS["softmax"].build()(jnp.asarray(playground_logits(6, 4.0, 1.0), jnp.float32)))
    first = playground_frame().row(0, named=True)
    assert first["normalizer"] == "softmax"
    assert first["best"] == pytest.approx(weights[0])
    assert first["entropy"] == pytest.approx(-(weights * np.log(weights)).sum(), rel=1e-5)
