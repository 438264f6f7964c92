"""Segments are weighed as the rows of a padded array: by every method, by one's own function, on hostile rows too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.laws import laws
from softmax_jax.laws.checker import weigh_interleaved
from softmax_jax.laws.laws import Claims, Rounding, Weighed
from softmax_jax.refusal import Refusal
from tests.tiers import HEART, full_except, methods

SEGMENTS, ENTRIES, HEADS = 7, 40, 2


class ByAxis(sj.Map):
    """Reads the axis of its rows, which segments do not have."""

    def weights(self, row):
        return jax.nn.softmax(row.logits, row.axis)


FUNCTIONS = {
    "a function": sj.Normalizer(jax.nn.softmax),
    "a function over a scale": sj.Normalizer(jax.nn.softmax, sj.LogLength(s=1.0)),
    "a map that reads the axis": sj.Normalizer(ByAxis()),
    "a number per head": sj.Normalizer(sj.softmax, sj.LogLength(s=jnp.array([0.5, 2.0]))),
}
every_kind = pytest.mark.parametrize("name", [*methods(), *FUNCTIONS])


def normalizer_of(name):
    return FUNCTIONS[name] if name in FUNCTIONS else sj.normalizer(name)


@functools.cache
def graph():
    """Logits, ids of which 3 and the last have no entry, a mask that empties segment 0, and the entries as rows."""
    rng = np.random.default_rng(0)
    ids = rng.choice([0, 1, 2, 4, 5], ENTRIES)
    logits = rng.normal(size=(ENTRIES, HEADS)).astype(np.float32) * 2
    where = (rng.random((ENTRIES, HEADS)) < 0.8) & (ids != 0)[:, None]
    places = [np.flatnonzero(ids == segment) for segment in range(SEGMENTS)]
    index = np.full((SEGMENTS, max(map(len, places))), ENTRIES)
    for row, place in zip(index, places):
        row[: len(place)] = place
    return jnp.asarray(logits), ids, jnp.asarray(where), index


def weigh_rows(normalizer, logits):
    """Weights of the segments as rows of a padded array."""
    _, _, where, index = graph()
    rows = logits.at[index].get(mode="fill", fill_value=0)
    visible = where.at[index].get(mode="fill", fill_value=False)
    return jnp.zeros_like(logits).at[index].set(normalizer(rows, 1, visible), mode="drop")


@jax.jit
def by_rows(normalizer, logits):
    weights, pull = jax.vjp(functools.partial(weigh_rows, normalizer), logits)
    return weights, pull(jnp.cos(jnp.arange(logits.size)).reshape(logits.shape).astype(logits.dtype))[0]


def weigh_segments(normalizer, logits, ids):
    _, _, where, index = graph()
    return sj.segments(logits, ids, normalizer, SEGMENTS, where=where, max_length=index.shape[1])


@jax.jit
def by_segments(normalizer, logits, ids):
    weights, pull = jax.vjp(lambda logits: weigh_segments(normalizer, logits, ids), logits)
    return weights, pull(jnp.cos(jnp.arange(logits.size)).reshape(logits.shape).astype(logits.dtype))[0]


@every_kind
def test_weights_and_gradients_are_those_of_padded_rows(name):
    logits, ids, *_ = graph()
    normalizer = normalizer_of(name)
    for actual, expected in zip(by_segments(normalizer, logits, ids), by_rows(normalizer, logits)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*methods(), *full_except(FUNCTIONS, "a function over a scale")])
def test_half_types_are_computed_in_float32(name):
    logits, ids, *_ = graph()
    half, normalizer = logits.astype(jnp.float16), normalizer_of(name)
    weights = jax.jit(weigh_segments)(normalizer, half, ids)
    expected, _ = by_segments(normalizer, half.astype(jnp.float32), ids)
    assert weights.dtype == jnp.float16
    if name not in ("a function", "a map that reads the axis"):  # which compute in the type of the logits
        np.testing.assert_array_equal(weights, expected.astype(jnp.float16))


@pytest.mark.full
@pytest.mark.parametrize("name", [*HEART, "first_token(bias=1)", "a function"])
def test_the_order_of_segments_the_calls_and_vmap_change_nothing(name):
    logits, ids, where, _ = graph()
    normalizer = normalizer_of(name)
    order = np.argsort(ids, kind="stable")
    expected = sj.segments(logits, ids, normalizer, SEGMENTS, where=where)
    ascending = sj.segments(logits[order], ids[order], normalizer, SEGMENTS, True, where=where[order])
    np.testing.assert_allclose(ascending, expected[order], rtol=1e-6, atol=1e-7)

    def weigh(logits, ids, where):
        return sj.segments(logits[:, None], ids, normalizer, SEGMENTS, where=where[:, None])[:, 0]

    by_head = jax.vmap(weigh, (1, None, 1), 1)(logits, jnp.asarray(ids), where)
    np.testing.assert_allclose(by_head, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", methods())
def test_the_laws_hold_on_hostile_rows(name):
    normalizer = sj.normalizer(name)

    @jax.jit
    def both(logits, where):
        weights, pull = jax.vjp(lambda z: weigh_interleaved(normalizer, z, where), logits)
        return weights, pull(jnp.cos(jnp.arange(weights.size)).reshape(weights.shape).astype(weights.dtype))[0]

    def weigh(rows):
        # Of one number of rows, so that one program is compiled.
        shape = (64, rows.logits.shape[1])
        arrays = jnp.asarray(np.resize(rows.logits, shape), jnp.float32), jnp.asarray(np.resize(rows.where, shape))
        return Weighed(*(np.asarray(array, np.float64)[: len(rows.logits)] for array in both(*arrays)))

    rows = laws.hostile("float32", 17, 60)
    rows = rows._replace(logits=rows.logits.astype(np.float64))
    broken = laws.broken(weigh, rows, Rounding.of("float32"), Claims.of(normalizer), any_size=True)
    assert [(promise, finding.rows.kinds[int(finding.broken.argmax())]) for promise, finding in broken] == []


@pytest.mark.parametrize("name", ["ssmax", "a function"])
def test_entries_of_no_segment_get_nothing_where_ids_are_traced(name):
    logits, ids = jnp.arange(6.0), jnp.array([-1, 0, 1, 0, 2, 9])
    weigh = lambda logits, ids: sj.segments(logits, ids, normalizer_of(name), 2)  # noqa: E731
    weights, expected = jax.jit(lambda z, ids: (weigh(z, ids), weigh(z[1:4], ids[1:4])))(logits, ids)
    np.testing.assert_allclose(weights, [0, *expected, 0, 0], atol=1e-7)


def test_a_segment_beyond_the_length_of_its_row_is_nan():
    weigh = jax.jit(lambda ids: sj.segments(jnp.zeros(4), ids, jax.nn.softmax, 2, max_length=2))
    np.testing.assert_array_equal(weigh(jnp.array([0, 1, 1, 1])), [1, np.nan, np.nan, np.nan])


def test_many_segments_are_padded_in_blocks(monkeypatch):
    logits, ids, where, _ = graph()
    weigh = lambda logits: sj.segments(logits, ids, jax.nn.softmax, SEGMENTS, where=where)  # noqa: E731
    expected = jax.jit(weigh)(logits)
    monkeypatch.setattr("softmax_jax.normalizers.segments.PADDED_ENTRIES", 40)
    np.testing.assert_array_equal(jax.jit(lambda logits: weigh(logits))(logits), expected)


@pytest.mark.parametrize(
    ("ids", "keywords", "message"),
    [
        ([0.0, 1.0], {}, "segment_ids has dtype float32; it must hold whole numbers"),
        ([0], {}, r"segment_ids has shape \(1,\); it must be \(2,\)"),
        ([0, -1], {}, "segment_ids holds -1; each must be from 0"),
        ([0, 5], {"num_segments": 2}, "segment_ids holds 5; each must be from 0 to num_segments - 1 = 1"),
        ([1, 0], {"indices_are_sorted": True}, "segment_ids holds 1 before 0 and indices_are_sorted=True"),
        ([0, 1], {"num_segments": -1}, "num_segments is -1; it must be at least 0"),
        ([0, 0], {"normalizer": jax.nn.softmax, "max_length": 1}, "max_length is 1 and segment 0 has 2 entries"),
    ],
)
def test_bad_input_is_refused_in_one_line(ids, keywords, message):
    with pytest.raises(Refusal, match=message) as refused:
        sj.segments(jnp.zeros(2), ids, **keywords)
    assert "\n" not in str(refused.value)


def test_the_number_of_traced_segments_is_to_be_given():
    with pytest.raises(Refusal, match="num_segments is None and segment_ids is traced"):
        jax.jit(sj.segments)(jnp.zeros(2), jnp.array([0, 1]))


@pytest.mark.parametrize("kind", full_except(["uint8", "uint32", "uint64", "int8"], "uint8"))
def test_ids_of_every_whole_type_are_read(kind):
    logits, ids = jnp.arange(4.0), np.array([1, 0, 1, 1])
    for normalizer in ("ssmax", jax.nn.softmax):
        expected = sj.segments(logits, ids, normalizer)
        np.testing.assert_array_equal(sj.segments(logits, ids.astype(kind), normalizer), expected)
    with pytest.raises(Refusal, match="segment_ids holds 1 before 0 and indices_are_sorted=True"):
        sj.segments(logits, ids.astype(kind), indices_are_sorted=True)


@pytest.mark.parametrize(("kind", "wrong"), [("uint64", 2**64 - 1), ("int64", 2**32), ("uint32", 2**32 - 1)])
def test_an_id_beyond_all_counts_is_refused(kind, wrong):
    with pytest.raises(Refusal, match=f"segment_ids holds {wrong}[;,] "):
        sj.segments(jnp.zeros(1), np.array([wrong], kind))


@pytest.mark.parametrize("shape", [(4, 0), (0, 3), (0,), (2, 3, 0)])
@pytest.mark.parametrize("name", ["ssmax", "a function"])
def test_empty_logits_have_empty_weights(name, shape):
    weigh = functools.partial(sj.segments, normalizer=normalizer_of(name), num_segments=2)
    ids = jnp.zeros(shape[:1], jnp.int32)
    for weights in (weigh(jnp.zeros(shape), ids), jax.jit(weigh)(jnp.zeros(shape), ids)):
        assert weights.shape == shape
