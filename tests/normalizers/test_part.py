"""The part of a row gives what the whole row gives, also where it must not be trusted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.masking import HIDDEN
from softmax_jax.normalizers.part import BLOCKS, KEPT, cut, largest_and_mean, largest_of_places
from softmax_jax.normalizers.ranks import kth_largest

from . import references

MAPS = {
    "sparsemax": (sj.sparsemax, references.sparsemax),
    "entmax15": (sj.entmax15, references.entmax15),
    "entmax 1.3": (functools.partial(sj.entmax, alpha=1.3), functools.partial(references.entmax, alpha=1.3)),
    "stieltjes 2": (functools.partial(sj.stieltjes, q=2.0), functools.partial(references.stieltjes, q=2.0)),
    "stieltjes 4.5": (functools.partial(sj.stieltjes, q=4.5), functools.partial(references.stieltjes, q=4.5)),
    "top 8": (sj.top_k_softmax, functools.partial(references.top_k, k=8)),
}
HEART = {"entmax15", "top 8"}
"""Maps that stand for all others in the default tier."""
EACH = [pytest.param(*pair, id=name, marks=[] if name in HEART else pytest.mark.full) for name, pair in MAPS.items()]
PLACES = 24


def in_one_place(entries, rest):
    """A row with these entries in one place of its blocks, and the rest of the same values wherever they fit."""
    blocks = np.full((BLOCKS, PLACES), rest)
    blocks[: len(entries), 5] = entries
    return blocks.ravel()


def hard_rows():
    """Rows in which the largest entries of each place are not those that matter, or all entries matter."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=BLOCKS * PLACES)
    rows = [
        normal,
        np.zeros_like(normal),
        0.001 * normal,
        in_one_place(np.zeros(BLOCKS), -9.0),
        in_one_place(np.zeros(KEPT), -9.0),
        in_one_place(np.zeros(KEPT + 1), -9.0),
        in_one_place(-0.01 * rng.permutation(BLOCKS), -0.3),
        in_one_place(np.linspace(0, -0.2, BLOCKS), -np.inf),
        np.where(np.arange(normal.size) % PLACES == 5, normal, normal - 9),
        np.where(normal > 1, normal, -np.inf),
        np.where(np.arange(normal.size) == 7, 0, -np.inf),
        1e30 * normal,
    ]
    return np.stack(rows).astype(np.float32)


def of_visible(reference, rows):
    """What the reference gives the entries above -inf, and 0 for the others."""
    weights = np.zeros(rows.shape)
    for place, row in enumerate(rows.astype(np.float64)):
        weights[place, row > -np.inf] = reference(row[row > -np.inf])
    return weights


@pytest.mark.parametrize(("weigh", "reference"), EACH)
def test_weights_are_right_where_the_part_does_not_tell(weigh, reference):
    rows = hard_rows()
    together = np.asarray(jax.jit(weigh)(jnp.asarray(rows)))
    np.testing.assert_allclose(together, of_visible(reference, rows), atol=5e-7, rtol=0)
    # Alone in its call a row is sure or not by itself, under vmap each for itself in one loop.
    np.testing.assert_allclose(jax.jit(jax.vmap(weigh))(rows), together, atol=5e-7, rtol=0)
    alone = jax.jit(weigh)
    np.testing.assert_allclose([alone(row) for row in rows], together, atol=5e-7, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize(("weigh", "reference"), EACH)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, BLOCKS * PLACES - 1])
def test_a_bad_row_stays_alone(weigh, reference, bad, place):
    rows = hard_rows()
    spoilt = np.concatenate([rows, rows])
    spoilt[: len(rows), place] = bad
    weights = np.asarray(jax.jit(weigh)(jnp.asarray(spoilt)))
    # What its size hides may have weight 0 there.
    assert np.isnan(weights[: len(rows)][spoilt[: len(rows)] > HIDDEN]).all()
    np.testing.assert_allclose(weights[len(rows) :], jax.jit(weigh)(rows), atol=5e-7, rtol=0)


@pytest.mark.parametrize("k", [1, KEPT, KEPT + 1, BLOCKS, 3 * PLACES, KEPT * PLACES + 1, 500])
def test_the_kth_largest_of_rows_whose_largest_share_a_place(k):
    rows = hard_rows()
    least = np.sort(rows, -1)[:, ::-1][:, k - 1, None] if k <= rows.shape[-1] else np.full((len(rows), 1), -np.inf)
    found = kth_largest(jnp.asarray(rows), jnp.full((1, 1), k, jnp.int32))
    np.testing.assert_array_equal(rows >= found, rows >= least)


@pytest.mark.parametrize("n", [32, 100, 384])
def test_the_part_has_the_largest_of_each_place(n):
    rows = np.random.default_rng(n).integers(-3, 3, size=(40, n)).astype(np.float32)
    rows[1::4, ::3], rows[2::4, ::5], rows[3] = np.nan, -np.inf, -np.inf
    blocks = np.asarray(cut(jnp.asarray(rows)))
    ordered = np.sort(np.where(np.isnan(blocks), np.inf, blocks), -2)[:, ::-1]
    part = largest_of_places(jnp.asarray(blocks))
    np.testing.assert_array_equal(part.largest, ordered[:, :KEPT])
    np.testing.assert_array_equal(part.maximum(), ordered[:, 0].max(-1, keepdims=True))
    left_out = ordered[:, KEPT:].max((-2, -1))
    assert (left_out <= np.asarray(part.bound())[:, 0]).all()


def test_the_mean_of_the_others_is_a_little_less():
    rows = -np.abs(np.random.default_rng(0).normal(size=(3, 4096))).astype(np.float32)
    rows[1], rows[2, 70] = -1 / 3, -np.inf
    part = largest_and_mean(jnp.asarray(rows), cut(jnp.asarray(rows)))
    assert part.mean is not None
    exact = (rows.astype(np.float64).sum(-1) - np.asarray(part.largest, np.float64).sum((-2, -1))) / part.others
    assert (np.asarray(part.mean)[:2, 0] < exact[:2]).all()
    np.testing.assert_allclose(part.mean[:, 0], exact, rtol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("weigh", "powers"),
    [(sj.entmax, {"alpha": alpha}) for alpha in (1.25, 1.5, 2.0)] + [(sj.stieltjes, {"q": q}) for q in (1.0, 2.0, 4.0)],
)
def test_a_power_that_is_a_plain_number_gives_what_an_array_gives(weigh, powers):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 200)), jnp.float32)
    arrays = {name: jnp.float32(value) for name, value in powers.items()}

    def both(weigh):
        weights, pull = jax.vjp(weigh, rows)
        return weights, pull(jnp.cos(jnp.arange(600.0)).reshape(3, 200))[0]

    plain = both(functools.partial(weigh, **powers))
    for ours, theirs in zip(plain, both(functools.partial(weigh, **arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-7)
    np.testing.assert_allclose(
        jax.hessian(lambda z: weigh(z, **powers)[0])(rows[0, :9]),
        jax.hessian(lambda z: weigh(z, **arrays)[0])(rows[0, :9]),
        atol=1e-5,
    )
