import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax import theory
from softmax_jax.transforms.probe import Probed
from tests.tiers import full_except

from .models import BATCH, CAUSAL, HEADS, LENGTH, QKV, apply_bert, attention, bert, run


def causal(q, k, v):
    return attention(q, k, v, hide=lambda z: jnp.where(CAUSAL, z, -1e9))


def test_rows_are_those_of_the_weights():
    def with_weights(q, k, v):
        identity = jnp.broadcast_to(jnp.eye(LENGTH)[None, None], (BATCH, HEADS, LENGTH, LENGTH))
        return sj.probe(causal)(q, k, v), causal(q, k, v), causal(q, k, identity)

    (output, (rows,)), wanted, weights = run(with_weights, *QKV)
    assert rows.also is None
    np.testing.assert_array_equal(output, wanted)
    assert rows.site.shape == (BATCH, HEADS, LENGTH, LENGTH)
    np.testing.assert_allclose(rows.entropy, sj.weight_entropy(weights), atol=1e-6)
    np.testing.assert_array_equal(rows.largest, weights.max(-1))
    np.testing.assert_array_equal(rows.place, weights.argmax(-1))
    np.testing.assert_array_equal(rows.first, weights[..., 0])
    np.testing.assert_array_equal(rows.visible, np.broadcast_to(np.arange(1, LENGTH + 1), rows.visible.shape))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_measures_of_logits_are_those_of_numpy_under_windows(dtype):
    """Queries see themselves and one key before; the last sees nothing."""
    places = np.arange(LENGTH)
    seen = (places <= places[:, None]) & (places > places[:, None] - 2) & (places[:, None] < LENGTH - 1)
    low = -1e9 if dtype == jnp.float32 else -1e30
    z = (8 * jax.random.normal(jax.random.key(0), (LENGTH, LENGTH))).astype(dtype)

    def attend(z, seen):
        return jax.nn.softmax(jnp.where(seen, z, low), axis=-1) @ jnp.eye(LENGTH, dtype=dtype)

    _, (rows,) = run(sj.probe(attend, where=lambda site: True), z, jnp.asarray(seen))
    for query, (own, sees) in enumerate(zip(np.asarray(z, np.float64), seen)):
        ordered = np.sort(own[sees])[::-1] if sees.any() else np.zeros(1)
        wanted = {
            "top": ordered[0],
            "gap": ordered[0] - ordered[1] if len(ordered) > 1 else 0,
            "spread": ordered[0] - ordered[-1],
            "log_sum_exp": np.log(np.exp(ordered).sum()) if sees.any() else 0,
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(getattr(rows, name)[query], value, rtol=1e-5, atol=1e-5)
    expected = np.mean([first > 0.3 for first, visible in zip(rows.first, rows.visible) if visible > 1])
    np.testing.assert_allclose(rows.sink_rate(), expected)


@pytest.mark.parametrize("normalizer", full_except((None, "hardmax"), "hardmax"))
def test_rows_under_a_normalizer_are_those_of_the_swap_with_the_critical_beta_of_the_model(normalizer):
    def with_logits(q, k, v):
        logits = []
        attention(q, k, v, hide=lambda z: logits.append(z) or z)
        also = lambda weights: (weights[..., :2].sum(-1), weights.sum())  # noqa: E731
        probe = sj.probe(causal, normalizer, critical=True, also=also)
        return probe(q, k, v), sj.swap(causal, normalizer or "softmax")(q, k, v), logits[0]

    (output, probed), wanted_output, logits = run(with_logits, *QKV)
    np.testing.assert_array_equal(output, wanted_output)
    (rows,) = probed
    assert bool((rows.largest == 1).all()) == bool((rows.entropy == 0).all()) == (normalizer == "hardmax")
    assert bool((rows.also[0] >= rows.first).all())
    np.testing.assert_allclose(rows.also[1], rows.first.size, rtol=1e-5)
    assert rows.critical.shape == rows.entropy.shape
    wanted = theory.critical_beta(logits, np.broadcast_to(CAUSAL, logits.shape))
    np.testing.assert_allclose(rows.critical, wanted, rtol=1e-4)
    np.testing.assert_array_equal(rows.critical[..., 0], 0)
    head, line = repr(probed).splitlines()
    assert head.split()[-1] == "critical"
    assert float(line.split()[-1]) == pytest.approx(np.median(wanted), abs=2e-3)


@pytest.mark.full
def test_turns_of_a_loop_are_stacked():
    tokens, present = jnp.arange(2 * LENGTH).reshape(2, LENGTH), jnp.arange(LENGTH)[None] < jnp.array([[4], [6]])
    _, (rows,) = run(sj.probe(apply_bert, critical=True), bert(layers=3), tokens, present)
    assert rows.critical.shape == rows.entropy.shape == (3, BATCH, HEADS, LENGTH)
    np.testing.assert_array_equal(rows.visible[:, :, 0, 0], [[4, 6]] * 3)


@pytest.mark.full
def test_branches_and_while_loops():
    def branches(q, k, v):
        return jax.lax.cond(q[0, 0, 0, 0] > 1e9, attention, lambda *qkv: attention(*qkv) + 1, q, k, v)

    def loop(q, k, v):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, attention(s[1], k, v)), (0, q))[1]

    def before(q, k, v):
        return sj.probe(attention)(attention(attention(q, k, v), k, v), k, v)

    functions = sj.probe(branches, critical=True), sj.probe(loop), before
    (_, (taken, other)), (_, (last,)), (_, (wanted,)) = run(lambda *qkv: [f(*qkv) for f in functions], *QKV)
    assert np.isnan(other.entropy).all() != np.isnan(taken.entropy).all()
    assert sorted([bool(np.isnan(rows.critical).all()) for rows in (taken, other)]) == [False, True]
    assert {int(rows.visible.max()) for rows in (taken, other)} == {-1, LENGTH}
    assert last.critical is None
    np.testing.assert_allclose(last.entropy, wanted.entropy, atol=1e-5)
    assert "none" in repr(Probed([taken, other]))
