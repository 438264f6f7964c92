"""The data of max retrieval, and its model against plain attention."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.experiment.tasks import max_retrieval, retrieval_model, rounded_products
from softmax_jax.experiment.tasks.max_retrieval import LEAD, NEEDLE, QUANTILES, MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import (
    BLOCK,
    CLASSES,
    KnownItems,
    MaxRetrievalModel,
    entry_of,
    every_item,
)
from softmax_jax.normalizers.registry import normalizer
from tests.tiers import full_except

KEY = jax.random.key(7)
CHANCE = 1e-4
"""A sound generator fails one statistical test in this many keys."""

# In one program: drawn operation by operation, each would be compiled by itself.
sample = jax.jit(max_retrieval.sample, static_argnums=(1, 2, 4))
sample_near_ties = jax.jit(max_retrieval.sample_near_ties, static_argnums=(1, 2, 3))


@pytest.mark.parametrize("items", full_except([5, BLOCK, 2 * BLOCK + 100], 5))
def test_the_answer_is_the_class_of_the_largest_visible_item_and_the_rest_is_0(items):
    lengths = jnp.array([items, items // 2, 1])
    batch, full = sample(KEY, 3, items, lengths), sample(KEY, 3, items, jnp.full(3, items))
    for features, length, answer in zip(np.asarray(batch.items), lengths, batch.answer):
        assert features[features[:length, 0].argmax(), 1:].argmax() == answer
    assert np.array_equal(batch.mask.sum(1), lengths)
    assert np.array_equal(np.where(batch.mask[..., None], full.items, 0), batch.items)


@pytest.mark.full
@pytest.mark.parametrize("priority", ["uniform", NEEDLE])
def test_a_test_set_has_the_items_of_its_length_whatever_the_room(priority):
    """A task derived from this one, which may draw other sets, shares no program."""
    task = MaxRetrieval(priority=priority)
    exact = task.test_batch(KEY, 5, 1)
    roomy = task.test_set(KEY, jnp.int32(5), 8)
    assert np.array_equal(roomy.items[:, :5], exact.items)
    assert np.array_equal(roomy.answer, exact.answer)
    assert not roomy.mask[:, 5:].any()

    class Other(MaxRetrieval):
        def test_batch(self, key, length, sets):
            return sample_near_ties(key, sets, length, 4)

    assert (task.shared, Other().shared) == ((256, 1024), ())
    jax.tree.map(np.testing.assert_array_equal, Other().test_set(KEY, jnp.int32(5), 5), Other().test_batch(KEY, 5, 1))


def test_every_block_of_a_long_set_has_items_of_its_own():
    batch = sample(KEY, 1, 2 * BLOCK)
    first, second = np.asarray(batch.items[0]).reshape(2, BLOCK, -1)
    assert len(np.intersect1d(first[:, 0], second[:, 0])) < 5
    assert 0.05 < np.mean(first[:, 1:].argmax(1) == second[:, 1:].argmax(1)) < 0.2


@pytest.mark.parametrize("nearest_of", full_except([1, 16], 1))
def test_near_ties_are_the_nearest_of_their_draws(nearest_of):
    items, visible = 8, 5
    batch = sample_near_ties(KEY, 2000, items, nearest_of, jnp.array([visible]))
    assert np.array_equal(batch.mask.sum(1), np.full(2000, visible))
    assert not batch.items[:, visible:].any()
    largest = np.asarray(batch.items[..., 0]).argmax(1)
    assert np.array_equal(batch.items[np.arange(2000), largest, 1:].argmax(-1), batch.answer)
    # The gap above all others of n uniform numbers exceeds g with probability (1 - g)^n.
    second, best = np.sort(batch.items[..., 0], 1)[:, -2:].T
    assert scipy.stats.kstest(best - second, lambda g: 1 - (1 - g) ** (visible * nearest_of)).pvalue > CHANCE
    assert scipy.stats.chisquare(np.bincount(batch.answer, minlength=CLASSES)).pvalue > CHANCE


@pytest.mark.full
def test_training_batches_have_one_length_within_the_range_and_are_reused_as_often_as_asked():
    sizes = functools.partial(MaxRetrieval, batch=16, min_items=2, max_items=4)
    draw = jax.jit(sizes(steps_per_batch=10).training_batch)
    batches = [draw(jnp.int32(0), jnp.int32(step)) for step in range(0, 400, 9)]
    assert all(len(set(batch.mask.sum(1).tolist())) == 1 for batch in batches)
    assert {int(batch.mask[0].sum()) for batch in batches} == {2, 3, 4}
    assert np.array_equal(batches[0].query, batches[1].query)  # steps 0, 9 and 18
    assert not np.array_equal(batches[1].query, batches[2].query)
    hard = sizes(nearest_of=16).training_batch(jnp.int32(0), jnp.int32(3))
    assert -np.diff(jax.lax.top_k(jnp.where(hard.mask, hard.items[..., 0], -1), 2)[0]).mean() < 0.1


@pytest.mark.full
def test_the_numbers_follow_the_stated_distributions():
    batch = sample(KEY, 10_000, 16)
    rho, kappa = np.asarray(batch.items[..., 0], np.float64), np.asarray(batch.items[..., 1:].argmax(-1))
    assert np.array_equal(batch.items[..., 1:].sum(-1), np.ones(kappa.shape))
    position = rho.argmax(1)
    places_and_answers = np.histogram2d(position, np.asarray(batch.answer), bins=(16, CLASSES))[0]
    tests: list[Any] = [scipy.stats.kstest(numbers.ravel(), "uniform") for numbers in (rho, batch.query)]
    tests += [scipy.stats.chisquare(np.bincount(values)) for values in (kappa.ravel(), position)]
    tests.append(scipy.stats.chi2_contingency(places_and_answers))
    assert min(test.pvalue for test in tests) > CHANCE
    assert (kappa.max(), position.max()) == (CLASSES - 1, 15)
    assert abs(np.corrcoef(rho[:, 0], rho[:, 1])[0, 1]) < 0.04


def test_every_draw_that_can_be_has_a_finite_priority():
    draws = jnp.array([0.0, 2.0**-23, 0.5, 1 - 2.0**-23])  # the least and the largest that jax.random.uniform gives
    for quantile in QUANTILES.values():
        assert jnp.isfinite(quantile(draws)).all()
        assert (jnp.diff(quantile(draws)) > 0).all()


EXPECTED = {
    "beta_2": scipy.stats.beta(1, 2),
    "beta_4": scipy.stats.beta(1, 4),
    "gaussian": scipy.stats.norm(),
    "exponential": scipy.stats.expon(),
}


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(QUANTILES) - {"uniform"}))
def test_a_distribution_changes_the_values_as_its_name_says_and_not_which_item_is_the_largest(name):
    drawn, uniform = (sample(KEY, 200, 1500, jnp.arange(1, 201), priority) for priority in (name, "uniform"))
    visible = np.where(drawn.mask, drawn.items[..., 0], -np.inf)
    answer = drawn.items[jnp.arange(200), visible.argmax(1), 1:].argmax(-1)
    assert np.array_equal(answer, drawn.answer)
    if name == NEEDLE:
        best, second = jax.lax.top_k(visible, 2)[0][1:].T
        assert not visible.argmax(1).any()
        assert (best - second >= LEAD).all()
    else:
        assert np.array_equal(drawn.answer, uniform.answer)
        assert scipy.stats.kstest(visible[np.isfinite(visible)], EXPECTED[name].cdf).pvalue > 1e-3


@pytest.fixture(scope="module")
def model():
    return nnx.jit(lambda: MaxRetrievalModel(width=16, rngs=nnx.Rngs(0)))()


both_sums = pytest.mark.parametrize("name", full_except(["softmax", "signed_l1"], "softmax"))
"""Weights that sum to 1 and others: of a normalizer, the projections see the sum alone."""

folded = nnx.jit(lambda model, batch, normalizer: model(batch, normalizer))


@nnx.jit
def plain(model, batch, normalizer):
    """Scores and weights of the model with every projection written out."""
    hidden = nnx.gelu(model.item_out(nnx.gelu(model.item_in(batch.items))))
    query = model.attention_query(nnx.gelu(model.query_out(nnx.gelu(model.query_in(batch.query)))))
    value, weights = dot_product_attention(
        query[:, None, None, :],
        model.attention_key(hidden)[:, :, None, :],
        model.attention_value(hidden)[:, :, None, :],
        mask=batch.mask[:, None, None, :],
        normalizer=normalizer,
        return_weights=True,
    )
    return model.read_out(nnx.gelu(model.read_in(model.attention_out(value[:, 0, 0])))), weights[:, 0, 0]


@both_sums
def test_folded_projections_equal_plain_attention_and_masked_items_change_nothing(model, name):
    batch = sample(KEY, 3, 5, jnp.array([5, 3, 1]))
    ours, (scores, weights) = folded(model, batch, normalizer(name)), plain(model, batch, normalizer(name))
    np.testing.assert_allclose(ours.weights, weights, atol=1e-6)
    np.testing.assert_allclose(ours.scores, scores, atol=1e-5)
    hidden, noise = ~np.asarray(batch.mask), np.random.default_rng(0).normal(size=batch.items.shape).astype(np.float32)
    spoiled = batch._replace(items=jnp.asarray(np.where(hidden[..., None], noise, batch.items)))
    after = folded(model, spoiled, normalizer(name))
    assert np.array_equal(ours.scores, after.scores)
    assert not np.asarray(after.weights)[hidden].any()


@pytest.mark.full
def test_long_sets_are_encoded_block_by_block_to_the_same_scores(model, monkeypatch):
    batch = sample(KEY, 2, 2 * BLOCK + 300, jnp.array([2 * BLOCK + 300, 70]))
    whole = folded(model, batch, normalizer("softpick"))
    monkeypatch.setattr(retrieval_model, "LONGEST_WHOLE", 1)
    by_block = nnx.jit(lambda model, batch: model(batch, normalizer("softpick")))(model, batch)
    for ours, theirs in zip(by_block, whole):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


KNOWN = MaxRetrieval(width=8, matmul="bfloat16", rounded="all")
changed_to = functools.partial(dataclasses.replace, KNOWN)


@pytest.mark.full
@pytest.mark.parametrize("rounded", rounded_products.PLACES)
def test_a_table_finds_what_the_encoder_computes(rounded):
    model = changed_to(rounded=rounded).build("softmax", nnx.Rngs(1))
    batch = sample(KEY, 3, 2000, jnp.array([2000, 5, 1]))
    computed, table = (reader.hidden(batch.items)[batch.mask] for reader in (model, KnownItems(model)))
    computed = rounded_products.rounded_to("bfloat16", computed) if rounded == "all" else computed
    np.testing.assert_allclose(table, computed, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_the_table_has_every_item_that_is_drawn():
    """From the least ρ above 0 to the largest below 1, which rounds to 1. It is for many items that rounding ties."""
    rho = jnp.array([0.0, 2.0**-23, 3 * 2.0**-23, 0.3, 0.5, 1 - 2.0**-8, 1 - 2.0**-23])
    items = jnp.stack([jnp.concatenate([rho[:, None], jnp.tile(jnp.eye(10)[k], (7, 1))], 1) for k in range(10)])
    entries = every_item()[entry_of(items)]
    np.testing.assert_array_equal(entries[..., 0], jax.lax.reduce_precision(items[..., 0], 8, 7))
    np.testing.assert_array_equal(entries[..., 1:], items[..., 1:])
    model = KNOWN.build("softmax", nnx.Rngs(1))
    assert isinstance(KNOWN.for_testing(model, 2**20), KnownItems)
    for task, count in ((KNOWN, 100), (MaxRetrieval(width=8), 2**20), (changed_to(priority=NEEDLE), 2**20)):
        assert task.for_testing(model, count) is model
