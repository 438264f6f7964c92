from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from flax import nnx

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.experiment.tasks import max_retrieval, rounded_products
from softmax_jax.experiment.tasks.max_retrieval import (
    CLASSES,
    LEAD,
    NEEDLE,
    QUANTILES,
    MaxRetrieval,
    sample,
    sample_near_ties,
)
from softmax_jax.experiment.tasks.retrieval_model import BLOCK, KnownItems, MaxRetrievalModel, entry_of, every_item
from softmax_jax.normalizers.registry import normalizer
from tests.tiers import full_except

KEY = jax.random.key(7)
CHANCE = 1e-4
"""A sound generator fails one statistical test in so many keys."""


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


@pytest.mark.full
def test_a_batch_is_a_function_of_its_key():
    assert equal(sample(KEY, 4, 6), sample(KEY, 4, 6))
    assert not equal(sample(KEY, 4, 6), sample(jax.random.key(8), 4, 6))


@pytest.mark.full
def test_lengths_change_the_mask_and_nothing_in_front_of_it():
    lengths = jnp.array([6, 1, 3])
    full, cut = sample(KEY, 3, 6), sample(KEY, 3, 6, lengths)
    assert np.array_equal(cut.mask.sum(1), lengths)
    assert np.array_equal(np.where(cut.mask[..., None], full.items, 0), cut.items)


@pytest.mark.parametrize("items", full_except([5, BLOCK, 2 * BLOCK + 100], 5))
def test_answer_is_the_class_of_the_largest_visible_item(items):
    lengths = jnp.array([items, items // 2, 1])
    batch = sample(KEY, 3, items, lengths)
    for features, length, answer in zip(np.asarray(batch.items), lengths, batch.answer):
        largest = features[:length, 0].argmax()
        assert features[largest, 1:].argmax() == answer


def test_every_block_of_a_long_set_has_items_of_its_own():
    batch = sample(KEY, 1, 2 * BLOCK)
    (first, second) = np.asarray(batch.items[0]).reshape(2, BLOCK, -1)
    assert len(np.intersect1d(first[:, 0], second[:, 0])) < 5
    assert 0.05 < np.mean(first[:, 1:].argmax(1) == second[:, 1:].argmax(1)) < 0.2


@pytest.mark.parametrize("nearest_of", full_except([1, 16], 16))
def test_near_ties_are_the_nearest_of_so_many_draws(nearest_of):
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
def test_the_numbers_follow_the_stated_distributions():
    batch = sample(KEY, 10_000, 16)
    rho, kappa = np.asarray(batch.items[..., 0], np.float64), np.asarray(batch.items[..., 1:].argmax(-1))
    assert np.array_equal(batch.items[..., 1:].sum(-1), np.ones(kappa.shape))
    assert scipy.stats.kstest(rho.ravel(), "uniform").pvalue > CHANCE
    assert scipy.stats.kstest(np.asarray(batch.query, np.float64).ravel(), "uniform").pvalue > CHANCE
    assert scipy.stats.chisquare(np.bincount(kappa.ravel(), minlength=CLASSES)).pvalue > CHANCE
    position = rho.argmax(1)
    assert scipy.stats.chisquare(np.bincount(position, minlength=16)).pvalue > CHANCE
    table = np.histogram2d(position, np.asarray(batch.answer), bins=(16, CLASSES))[0]
    independence: Any = scipy.stats.chi2_contingency(table)
    assert independence.pvalue > CHANCE
    assert abs(np.corrcoef(rho[:, 0], rho[:, 1])[0, 1]) < 0.04


@pytest.fixture(scope="module")
def model():
    return MaxRetrievalModel(width=16, rngs=nnx.Rngs(0))


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
def test_folded_projections_equal_plain_attention(model, name):
    batch = sample(KEY, 4, 9, jnp.array([9, 4, 1, 7]))
    ours, (scores, weights) = folded(model, batch, normalizer(name)), plain(model, batch, normalizer(name))
    assert np.allclose(ours.weights, weights, atol=1e-6)
    assert np.allclose(ours.scores, scores, atol=1e-5)


@both_sums
def test_masked_items_change_nothing(model, name):
    batch = sample(KEY, 4, 9, jnp.array([9, 4, 1, 7]))
    hidden = ~batch.mask
    spoiled = batch._replace(items=jnp.where(hidden[..., None], jax.random.normal(KEY, batch.items.shape), batch.items))
    a, b = (folded(model, one, normalizer(name)) for one in (batch, spoiled))
    assert np.array_equal(a.scores, b.scores)
    assert not np.any(b.weights[hidden])


@pytest.mark.full
@pytest.mark.parametrize("name", ["ssmax", "entmax"])
def test_a_normalizers_numbers_train_with_the_model(name):
    """A normalizer is a pytree, so its numbers are parameters like any other."""
    structure, parameters = nnx.split(MaxRetrievalModel(16, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = optax.adam(1e-2)

    def loss(trained, batch):
        own_parameters, own_normalizer = trained
        scores = nnx.merge(structure, own_parameters)(batch, own_normalizer).scores
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()

    @jax.jit
    def steps(carry, keys):
        def step(carry, key):
            trained, state = carry
            value, gradient = jax.value_and_grad(loss)(trained, sample(key, 64, 6))
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(gradient, state, trained)
            return (optax.apply_updates(trained, updates), state), value

        return jax.lax.scan(step, carry, keys)

    start = parameters, jax.tree.map(jnp.asarray, normalizer(name))
    (trained, _), losses = steps((start, optimizer.init(start)), jax.random.split(jax.random.key(0), 300))
    assert losses[-20:].mean() < 0.8 * losses[:20].mean()
    leaves = dict(jax.tree.leaves_with_path(trained[1]))
    before = dict(jax.tree.leaves_with_path(start[1]))
    assert any(abs(float(leaves[path] - before[path])) > 0.01 for path in leaves)
    assert all(np.isfinite(leaf) for leaf in leaves.values())


@pytest.mark.parametrize("name", QUANTILES)
def test_every_draw_that_can_be_has_a_finite_priority(name):
    draws = jnp.array([0.0, 2.0**-23, 0.5, 1 - 2.0**-23])  # the least and the largest that jax.random.uniform gives
    rho = QUANTILES[name](draws)
    assert jnp.isfinite(rho).all()
    assert (jnp.diff(rho) > 0).all()


@pytest.mark.full
@pytest.mark.parametrize("name", QUANTILES)
def test_a_distribution_changes_the_values_and_not_which_item_is_the_largest(name):
    drawn, uniform = (sample(KEY, 200, 1500, jnp.arange(1, 201), priority) for priority in (name, "uniform"))
    visible = jnp.where(drawn.mask, drawn.items[..., 0], -jnp.inf)
    largest = visible.argmax(1)
    assert jnp.isfinite(drawn.items).all()
    answer = drawn.items[jnp.arange(200), largest, 1:].argmax(-1)
    assert np.array_equal(answer, drawn.answer)
    if name == NEEDLE:
        second = jax.lax.top_k(visible, 2)[0][1:, 1]
        assert not largest.any()
        assert (visible.max(1)[1:] - second >= LEAD).all()
    else:
        assert np.array_equal(drawn.answer, uniform.answer)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "of_scipy"),
    [
        ("beta_2", scipy.stats.beta(1, 2)),
        ("beta_4", scipy.stats.beta(1, 4)),
        ("gaussian", scipy.stats.norm()),
        ("exponential", scipy.stats.expon()),
    ],
)
def test_priorities_are_distributed_as_their_name_says(name, of_scipy):
    rho = np.asarray(sample(KEY, 100, 1000, priority=name).items[..., 0], np.float64)
    assert scipy.stats.kstest(rho.ravel(), of_scipy.cdf).pvalue > 1e-3


@pytest.mark.full
def test_long_sets_are_encoded_block_by_block_to_the_same_scores(model, monkeypatch):
    batch = sample(KEY, 2, 2 * BLOCK + 300, jnp.array([2 * BLOCK + 300, 70]))
    whole = folded(model, batch, normalizer("softpick"))
    monkeypatch.setattr(max_retrieval, "LONGEST_WHOLE", 1)
    by_block = nnx.jit(lambda model, batch: model(batch, normalizer("softpick")))(model, batch)
    for ours, theirs in zip(by_block, whole):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def known_task(rounded="all"):
    return MaxRetrieval(width=8, matmul="bfloat16", rounded=rounded)


@pytest.mark.full
@pytest.mark.parametrize(
    "rounded", [*(pytest.param(place, marks=pytest.mark.full) for place in rounded_products.PLACES[:-1]), "all"]
)
def test_a_table_finds_what_the_encoder_computes(rounded):
    model = known_task(rounded).build("softmax", nnx.Rngs(1))
    batch = sample(KEY, 3, 2000, jnp.array([2000, 5, 1]))
    computed, found = (one.hidden(batch.items)[batch.mask] for one in (model, KnownItems(model)))
    computed = rounded_products.rounded_to("bfloat16", computed) if rounded == "all" else computed
    np.testing.assert_allclose(found, computed, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_the_table_has_every_item_that_is_drawn():
    """From the least ρ above 0 to the largest below 1, which rounds to 1."""
    rho = jnp.array([0.0, 2.0**-23, 3 * 2.0**-23, 0.3, 0.5, 1 - 2.0**-8, 1 - 2.0**-23])
    items = jnp.stack([jnp.concatenate([rho[:, None], jnp.tile(jnp.eye(10)[k], (7, 1))], 1) for k in range(10)])
    found = every_item()[entry_of(items)]
    np.testing.assert_array_equal(found[..., 0], jax.lax.reduce_precision(items[..., 0], 8, 7))
    np.testing.assert_array_equal(found[..., 1:], items[..., 1:])


@pytest.mark.full
@pytest.mark.parametrize("task", [MaxRetrieval(width=8), MaxRetrieval(width=8, matmul="bfloat16", priority=NEEDLE)])
def test_a_table_is_for_many_items_of_which_rounding_leaves_few(task):
    model = known_task().build("softmax", nnx.Rngs(1))
    assert isinstance(known_task().for_testing(model, 2**20), KnownItems)
    assert known_task().for_testing(model, 100) is model
    assert task.for_testing(model, 2**20) is model
