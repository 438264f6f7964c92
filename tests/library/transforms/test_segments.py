"""Softmaxes over segments, as in graph attention, are swapped as if edited by hand, and probed segment by segment."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.tiers import full_except

from .models import close, normal, refused, run

NODES, HEADS, EDGES = 5, 2, 12
SENDERS = jnp.asarray(np.random.default_rng(0).integers(0, NODES, EDGES), jnp.int32)
RECEIVERS = jnp.array([3, 0, 0, 1, 3, 3, 0, 1, 3, 0, 2, 3], jnp.int32)  # none is 4
SHOWN = (jnp.arange(EDGES) % 4 > 0)[:, None]
NODE_VALUES, LOGITS = normal(NODES, HEADS, 3), normal(EDGES, HEADS, seed=1)


def total(values, ids=RECEIVERS, **options):
    return jax.ops.segment_sum(values, ids, NODES, **options)


def messages(weights, ids=RECEIVERS):
    return total(weights[..., None] * NODE_VALUES[SENDERS], ids)


def less_maximum(z, ids=RECEIVERS):
    top = jax.ops.segment_max(z, ids, NODES)
    return z - jnp.where(jnp.isfinite(top), top, 0)[ids]


def of_jraph(z):
    exponentials = jnp.exp(less_maximum(z))
    return messages(exponentials / total(exponentials)[RECEIVERS])


def without_maximum(z):
    exponentials = jnp.exp2(z * 3)
    return messages(exponentials * (1 / (total(exponentials) + 1e-16))[RECEIVERS])


def one_maximum_and_a_temperature(z):
    exponentials = jnp.exp((z - z.max()) / 0.7)
    sums = total(exponentials)
    return messages(exponentials / jnp.where(sums > 0, sums, 1).at[RECEIVERS].get(mode="fill", fill_value=1))


def divided_after(z):
    exponentials = jnp.exp(less_maximum(z))
    return messages(exponentials) / jnp.maximum(total(exponentials), 1e-9)[..., None]


def masked_exponentials(z):
    exponentials = jnp.where(SHOWN, jnp.exp(less_maximum(z)), 0)
    return messages(exponentials / (total(exponentials)[RECEIVERS] + 1e-9))


def masked_logits(z):
    return of_jraph(jnp.where(SHOWN, z, -1e30))


ORDER = jnp.argsort(RECEIVERS)


def ascending(z):
    """Edges are sorted by their receivers, as the program says."""
    z, ids = z[ORDER], RECEIVERS[ORDER]
    exponentials = jnp.exp(less_maximum(z, ids))
    weights = exponentials / total(exponentials, ids, indices_are_sorted=True)[ids]
    return total(weights[..., None] * NODE_VALUES[SENDERS][ORDER], ids)


PADDED = jnp.where(SHOWN[:, 0], RECEIVERS, NODES)


def padded(z):
    """Edges that are padding have a receiver beyond all nodes."""
    exponentials = jnp.exp(z)
    return messages(exponentials / total(exponentials, PADDED)[PADDED], PADDED)


FORMS: dict[str, tuple[Callable[..., Any], float, Any]] = {
    "jraph": (of_jraph, 1, None),
    "no maximum": (without_maximum, 3 * np.log(2), None),
    "one maximum": (one_maximum_and_a_temperature, 1 / 0.7, None),
    "divided after": (divided_after, 1, None),
    "masked exponentials": (masked_exponentials, 1, SHOWN),
    "masked logits": (masked_logits, 1, SHOWN),
    "ascending": (ascending, 1, None),
    "padded": (padded, 1, SHOWN),
}
"""A layer of graph attention, the factor of its logits, and the edges that it shows."""
PER_HEAD = sj.normalizer("ssmax", s=jnp.array([0.4, 0.9]))


def sharper(z, axis: Any = -1, where: Any = None):
    """A plain function, which sees padded rows."""
    return jax.nn.softmax(2 * z, axis, where=where)


def with_gradient(function):
    def objective(z):
        output = function(z)
        return jnp.sin(output).sum(), output

    return jax.value_and_grad(objective, has_aux=True)


@pytest.mark.full
@pytest.mark.parametrize("name", FORMS)
def test_graph_attention_is_swapped_as_if_edited_by_hand(name: str):
    layer, factor, where = FORMS[name]
    (site,) = sj.sites(layer)(LOGITS)
    assert (site.use, site.shape, site.axis) == ("segments", LOGITS.shape, -2)

    def edited(z, normalizer):
        return messages(sj.segments(jnp.float32(factor) * z, RECEIVERS, normalizer, NODES, where=where))

    def every(z):
        normalizers = PER_HEAD, sj.normalizer("entmax15"), sj.Normalizer(sharper)
        swapped = [with_gradient(sj.swap(layer, normalizer))(z) for normalizer in normalizers]
        wanted = [with_gradient(lambda z, n=normalizer: edited(z, n))(z) for normalizer in normalizers]
        return swapped, wanted, sj.swap(layer, "softmax")(z), layer(z)

    swapped, wanted, same, stock = run(every, LOGITS)
    close(swapped, wanted, atol=2e-6)
    np.testing.assert_array_equal(same, stock)


@pytest.mark.parametrize("name", full_except(FORMS, "masked logits"))
def test_rows_of_segments_are_those_of_padded_rows(name: str):
    layer, factor, where = FORMS[name]
    edges = [np.flatnonzero(node == RECEIVERS) for node in range(NODES)]
    longest = max(map(len, edges))
    places = jnp.array([[*own, *[EDGES] * (longest - len(own))] for own in edges])
    seen = (places < EDGES)[..., None] & (True if where is None else jnp.pad(where, ((0, 1), (0, 0)))[places])

    def dense(z):
        """The same rows padded, with heads before the edges."""
        rows = jnp.pad(z, ((0, 1), (0, 0)))[places] * jnp.float32(factor)
        logits = jnp.where(jnp.broadcast_to(seen, rows.shape), rows, -1e30).swapaxes(1, 2)
        return jax.nn.softmax(logits) @ jnp.ones((longest, 2))

    def both(z):
        options: dict[str, Any] = {"critical": True, "empty": "zeros"}
        return [sj.probe(fun, "ssmax", **options)(z)[1][0] for fun in (layer, dense)]

    found, wanted = run(both, LOGITS)
    for measure in ("entropy", "largest", "visible", "top", "gap", "spread", "log_sum_exp", "critical"):
        np.testing.assert_allclose(getattr(found, measure), getattr(wanted, measure), rtol=1e-5, atol=2e-6)
    segments = lambda z: sj.segments(jnp.float32(factor) * z, RECEIVERS, "ssmax", NODES, where=where)  # noqa: E731
    weights = np.asarray(run(segments, LOGITS))
    order = np.asarray(ORDER) if name == "ascending" else np.arange(EDGES)
    for node, own in enumerate(edges[: NODES - 1]):
        for head in range(HEADS):
            np.testing.assert_allclose(
                weights[order][found.place[node, head], head], weights[own, head].max(), rtol=1e-6
            )
            if name != "padded":  # where a hidden edge belongs to no node
                np.testing.assert_allclose(found.first[node, head], weights[own[0], head], atol=1e-6)


def test_softmaxes_over_heads_or_one_entry_are_told_apart():
    def layer(z):
        z = z * jax.nn.softmax(z.sum(0, keepdims=True), 0)  # over an axis of size one: a factor of 1
        mixed = jax.nn.softmax(normal(NODES, HEADS, seed=3))  # over heads
        return jnp.einsum("nh,nhd->nd", mixed, of_jraph(z))

    found = sj.sites(layer)(LOGITS)
    assert [(site.use, site.axis, site.what) for site in found] == [
        ("other", -2, "softmax of one entry"),
        ("attention", -1, "softmax"),
        ("segments", -2, "softmax over segments"),
    ]
    swapped = sj.swap(layer, "hardmax", where=lambda site: site.use == "segments")
    edited = sj.swap(layer, {2: "hardmax"})
    close(*run(lambda z: (swapped(z), edited(z)), LOGITS))


def of_other_segments(z):
    exponentials = jnp.exp(z)
    return messages(exponentials / total(exponentials)[SENDERS])


def of_every_graph(z):
    exponentials = jnp.exp(z)
    sums = jax.vmap(lambda e, ids: jnp.zeros((NODES, HEADS)).at[ids].add(e))(exponentials[None], RECEIVERS[None])
    return messages(exponentials / sums[0][RECEIVERS])


@pytest.mark.parametrize("layer", [of_other_segments, of_every_graph])
def test_other_forms_are_listed_and_refused_in_one_line(layer: Any):
    (site,) = sj.sites(layer)(LOGITS)
    assert (site.use, site.what) == ("segments", "softmax over segments")
    line = f"site 0 at {site.line} is softmax over segments, in a form that is not known, as "
    refused(lambda: sj.swap(layer, "ssmax")(LOGITS), line)


def test_numbers_that_do_not_fit_are_named_in_one_line():
    swapped = sj.swap(of_jraph, sj.normalizer("ssmax", s=jnp.ones(3)))
    (site,) = sj.sites(of_jraph)(LOGITS)
    refused(
        lambda: swapped(LOGITS), f"site 0, site_0 at {site.line}: LogLength.s has shape (3,) for logits of shape (12"
    )


def by_index(z, ids):
    """Sums by indexing, which counts negative ids from the last segment."""
    exponentials = jnp.exp(z)
    sums = jnp.zeros(2).at[ids].add(exponentials)
    return jnp.zeros(2).at[ids].add(exponentials / sums[ids])


def by_segment_sum(z, ids):
    """The same by `segment_sum`, for which negative ids are of no segment."""
    exponentials = jnp.exp(z)
    sums = jax.ops.segment_sum(exponentials, ids, 2)
    return jax.ops.segment_sum(exponentials / sums[ids], ids, 2)


@pytest.mark.parametrize(("layer", "last"), [(by_index, 1), (by_segment_sum, -1)])
def test_a_negative_id_is_of_the_segment_that_the_scatter_gives_it(layer: Any, last: int):
    z, ids = jnp.array([0.0, 1.0, 2.0, 3.0]), jnp.array([0, 0, 1, -1])
    sums, (row,) = run(lambda z: sj.probe(layer, {0: "ssmax(s=1.0)"})(z, ids), z)
    close(sums, jnp.ones(2))
    assert row.visible.tolist() == [2, 2 if last == 1 else 1]


def shifted_ids(z, ids):
    """Ids that are moved by hand: no indexing from the end."""
    moved = jnp.where(ids < 2, ids + 2, ids)
    sums = jax.ops.segment_sum(jnp.exp(z), moved, 4)
    return jax.ops.segment_sum(jnp.exp(z) / sums[moved], moved, 4)


def test_ids_that_the_model_moves_itself_are_kept():
    z, ids = jnp.array([0.0, 1.0, 2.0, 3.0]), jnp.array([0, 1, 2, 3])
    close(run(sj.swap(shifted_ids, {0: "ssmax(s=1.0)"}), z, ids), jnp.array([0.0, 0, 1, 1]))


OUTSIDE_IDS = jnp.array([0, 0, 1, 1, 2, 2])
"""Of two segments: the last two entries are of none."""


def divided_outside(z):
    exponentials = jnp.exp(z)
    top, total = (jax.ops.segment_sum(v, OUTSIDE_IDS, 2) for v in (exponentials * jnp.arange(1.0, 7), exponentials))
    return top / (total + 1e-9)


def test_entries_of_no_segment_count_in_none():
    _, (row,) = run(sj.probe(divided_outside, where=lambda site: True), jnp.array([0.0, 0, 0, 0, 5, 5]))
    close(row.largest, jnp.full(2, 0.5))


def masked_outside(z, shown, ids):
    z = jnp.where(shown, z, -1e30)
    exponentials = jnp.exp(z - jax.ops.segment_max(z, ids, 2)[ids])
    weights = exponentials / jax.ops.segment_sum(exponentials, ids, 2)[ids]
    return jax.ops.segment_sum(weights * jnp.arange(1.0, 6), ids, 2), weights


def masked_after(z, shown, ids):
    exponentials = jnp.where(shown, jnp.exp(z), 0)
    weights = exponentials / (jax.ops.segment_sum(exponentials, ids, 2)[ids] + 1e-9)
    return jax.ops.segment_sum(weights * jnp.arange(1.0, 6), ids, 2), weights


@pytest.mark.parametrize(("layer", "empty"), [(masked_outside, 0.5), (masked_after, 0)])
def test_an_empty_segment_is_as_the_model_has_it_and_dropped_entries_have_no_weight(layer: Any, empty: float):
    shown, ids = jnp.array([True, False, False, False, True]), jnp.array([0, 0, 1, 1, -1])
    model = lambda z: layer(z, shown, ids)  # noqa: E731
    (sums, weights), (expected, _) = run(lambda z: (sj.swap(model, {0: "ssmax(s=1.0)"})(z), model(z)), jnp.zeros(5))
    close(sums, expected)
    close(weights, jnp.array([1, 0, empty, empty, 0]))


def flatter(z, axis: Any = -1, where: Any = None):
    return jax.nn.softmax(1e-4 * z, axis, where=where)


@pytest.mark.parametrize("normalizer", ["ssmax(s=1e-4)", flatter])
def test_the_size_of_logits_hides_nothing_in_a_swap(normalizer: Any):
    q, k, ids = jnp.array([[0.0], [-1e4], [-1.5e4]]), jnp.ones(1), jnp.array([0, 0, 0])

    def layer(q):
        exponentials = jnp.exp(q @ k)
        weights = exponentials / jax.ops.segment_sum(exponentials, ids, 1)[ids]
        return jax.ops.segment_sum(weights * jnp.arange(3.0), ids, 1)

    dense = lambda q: jax.nn.softmax((q @ k)[None]) @ jnp.arange(3.0)[:, None]  # noqa: E731
    actual, expected = run(lambda q: [sj.swap(model, {0: normalizer})(q) for model in (layer, dense)], q)
    close(actual, expected[0])


@pytest.mark.full
def test_measures_of_segments_and_of_rows_are_the_same_for_hostile_numbers_and_in_derivatives():
    """Rows of three entries: finite, low, tied, with NaN, with +inf, only NaN, and with nothing visible."""
    inf, nan = np.inf, np.nan
    z = jnp.array(
        [[1, 0, 2], [0, -1e4, -2e4], [3, 3, 1], [0, nan, 1], [0, inf, 1], [nan, nan, nan], [0, 0, 0]], jnp.float32
    )
    seen = jnp.arange(7)[:, None] < jnp.full((1, 3), 6)
    ids = jnp.repeat(jnp.arange(7), 3)

    def dense(z):
        z = z[..., None] @ jnp.ones(1)  # an argument that is low may be a mask, a product is none
        return jax.nn.softmax(jnp.where(seen, z, -1e30)) @ jnp.ones((3, 2))

    def in_segments(z):
        z = z[..., None] @ jnp.ones(1)
        exponentials = jnp.where(seen.ravel(), jnp.exp(z - jax.ops.segment_max(z, ids, 7)[ids]), 0)
        weights = exponentials / jax.ops.segment_sum(exponentials, ids, 7)[ids]
        return jax.ops.segment_sum(weights[:, None] * jnp.ones((21, 2)), ids, 7)

    def both(z):
        rows = [
            sj.probe(layer, "softmax", critical=True)(v)[1][0] for layer, v in [(dense, z), (in_segments, z.ravel())]
        ]
        finite = lambda layer: lambda v: sj.probe(layer, "softmax")(v)[1][0].log_sum_exp[:3].sum()  # noqa: E731
        gradients = [
            jax.grad(finite(layer))(v).reshape(7, 3)[:3] for layer, v in [(dense, z), (in_segments, z.ravel())]
        ]
        return rows, gradients

    (wanted, found), gradients = run(both, z)
    for measure in ("visible", "top", "gap", "spread", "log_sum_exp", "critical", "entropy", "largest", "first"):
        np.testing.assert_allclose(getattr(found, measure)[:6], getattr(wanted, measure)[:6], rtol=1e-6)
    np.testing.assert_array_equal(found.place[:6], wanted.place[:6] + 3 * np.arange(6))
    np.testing.assert_allclose(wanted.spread[:3], [2, 2e4, 2])  # what is low hides nothing that the model shows
    np.testing.assert_array_equal(wanted.log_sum_exp[4:], [inf, nan, 0])
    for gradient in gradients:
        np.testing.assert_allclose(gradient, jax.nn.softmax(z[:3]), rtol=1e-6)
