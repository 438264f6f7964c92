from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

from softmax_jax.measures import evaluation
from softmax_jax.measures.evaluation import Row
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.tasks.max_retrieval import BLOCK, MaxRetrieval, MaxRetrievalModel, sample
from softmax_jax.training.trainer import build_model

SEEDS = (4, 5)
WIDTH = 8


@pytest.fixture(scope="module")
def parameters():
    _, initialize = build_model(MaxRetrieval(width=WIDTH))
    return jax.vmap(initialize)(jax.random.split(jax.random.key(0), len(SEEDS)))


def rows_of(parameters, names, **keywords):
    named = {name: normalizer(name) for name in names}
    return [row for rows in evaluation.evaluate(parameters, named, seeds=SEEDS, **keywords) for row in rows]


def test_rows_equal_a_plain_loop_over_models_sets_and_normalizers(parameters):
    """At a length that the program has more room for, so that its padding is masked."""
    assert evaluation.bucket(9) == 10
    structure, _ = build_model(MaxRetrieval(width=WIDTH))
    rows = rows_of(parameters, METHODS, lengths=(9,), sets=8)
    keys = evaluation.fresh_batches(jax.random.key(2**31), jnp.asarray(SEEDS), 9, 8).reshape(len(SEEDS), 8)
    read = nnx.jit(lambda model, batch, normalizer: model(batch, normalizer))
    for row in rows:
        index = SEEDS.index(row.seed)
        model = nnx.merge(structure, jax.tree.map(lambda leaf, index=index: leaf[index], parameters))
        correct, losses, entropies, largest = [], [], [], []
        for key in keys[index]:
            batch = sample(key, 1, 9)
            out = read(model, batch, normalizer(row.normalizer))
            scores = np.asarray(out.scores[0], np.float64)
            weights = np.abs(np.asarray(out.weights[0], np.float64))
            correct.append(scores.argmax() == batch.answer[0])
            losses.append(np.log(np.exp(scores).sum()) - scores[batch.answer[0]])
            shares = weights[weights > 0] / weights.sum()
            entropies.append(-(shares * np.log(shares)).sum())
            largest.append(weights.max())
        expected = (100 * np.mean(correct), np.mean(losses), np.mean(entropies), np.mean(largest))
        assert np.allclose(row[3:7], expected, atol=1e-4)


def test_sets_do_not_depend_on_how_they_are_grouped(parameters, monkeypatch):
    rows = rows_of(parameters, ["softmax"], lengths=(5,), sets=16)
    monkeypatch.setattr(evaluation, "ITEMS_PER_BATCH", 20)
    regrouped = rows_of(parameters, ["softmax"], lengths=(5,), sets=16)
    assert np.allclose([row[3:] for row in rows], [row[3:] for row in regrouped], rtol=1e-5)


def test_sets_encoded_block_by_block_give_the_same_rows(parameters, monkeypatch):
    items = 2 * BLOCK + 300
    names = ["softmax", "adaptive", "softpick", "hardmax", "signed_l1", "entmax15", "sink_softmax"]
    whole = rows_of(parameters, names, lengths=(items,), sets=4)
    monkeypatch.setattr(evaluation, "LONGEST_WHOLE", 1)
    by_block = rows_of(parameters, names, lengths=(items,), sets=4)
    assert [row[:4] for row in by_block] == [row[:4] for row in whole]
    assert np.allclose([row[4:] for row in by_block], [row[4:] for row in whole], rtol=2e-6, atol=1e-7)


def test_the_blockwise_program_needs_a_few_numbers_per_item(parameters):
    """Not the hidden items, which are `width` numbers each."""
    structure, _ = build_model(MaxRetrieval(width=WIDTH))
    own = jax.tree.map(lambda leaf: leaf[0], parameters)
    named = (normalizer("softmax"),)

    def bytes_per_item(items):
        def run(own, one):
            return evaluation.measure_blocks(nnx.merge(structure, own), named, one, items=items)

        one = evaluation.FreshSets(jax.random.split(jax.random.key(0), 1), jnp.full(1, items))
        program: Any = jax.jit(run).lower(own, one).compile()
        return program.memory_analysis().temp_size_in_bytes / items

    assert bytes_per_item(2**18) < 100


@pytest.mark.parametrize("sets", [1, 7, 12])
def test_any_number_of_sets(sets):
    keys = evaluation.fresh_batches(jax.random.key(0), jnp.asarray(SEEDS), 16384, sets)
    assert keys.shape[1] * keys.shape[2] == sets
    assert len({tuple(key) for key in jax.random.key_data(keys).reshape(-1, 2).tolist()}) == sets * len(SEEDS)


def test_one_compilation_per_bucket(parameters):
    compiled: Any = evaluation.for_each_seed
    before = compiled._cache_size()
    for theta in (0.3, 0.4):
        named = {"a": normalizer("temperature", theta=theta), "b": normalizer("softpick")}
        list(evaluation.evaluate(parameters, named, seeds=SEEDS, lengths=(3, 9, 10), sets=4))
    assert compiled._cache_size() - before == 2


def test_the_notebook_stream_is_the_published_one():
    """Written out once more, with raw keys, straight from the description of the recreation."""
    batch = evaluation.notebook_batches(jnp.asarray(SEEDS), 12)
    with jax.threefry_partitionable(False):
        for index, seed in enumerate(range(11, 22)):
            _, key = jax.random.split(jax.random.PRNGKey(seed))
            _, k_rho, k_kappa, k_query = jax.random.split(key, 4)
            rho = jax.random.uniform(k_rho, (32, 12, 1))
            kappa = jax.random.randint(k_kappa, (32, 12), 0, 10)
            assert np.array_equal(batch.items[1, index, ..., :1], rho)
            assert np.array_equal(batch.items[1, index, ..., 1:].argmax(-1), kappa)
            assert np.array_equal(batch.query[1, index], jax.random.uniform(k_query, (32, 1, 1))[:, 0])
            assert np.array_equal(batch.answer[1, index], kappa[np.arange(32), np.asarray(rho)[..., 0].argmax(1)])
    assert batch.items.shape[:3] == (len(SEEDS), 11, 32)


def test_the_notebook_stream_has_the_old_random_bits():
    batch = evaluation.notebook_batches(jnp.asarray(SEEDS[:1]), 12)
    _, key = jax.random.split(jax.random.PRNGKey(11))
    _, k_rho, _, _ = jax.random.split(key, 4)
    assert not np.array_equal(batch.items[0, 0, ..., :1], jax.random.uniform(k_rho, (32, 12, 1)))


def test_notebook_accuracy_is_the_mean_over_its_keys(parameters):
    rows = rows_of(parameters, ["softmax"], lengths=(8,), protocol="notebook")
    structure, _ = build_model(MaxRetrieval(width=WIDTH))
    batches = evaluation.notebook_batches(jnp.asarray(SEEDS), 8)
    for index, row in enumerate(rows):
        model: MaxRetrievalModel = nnx.merge(structure, jax.tree.map(lambda leaf, i=index: leaf[i], parameters))
        hits = []
        for stream in range(11):
            batch = jax.tree.map(lambda leaf, i=index, s=stream: leaf[i, s], batches)
            hits.append(float((model(batch).scores.argmax(-1) == batch.answer).mean()))
        assert np.isclose(row.accuracy, 100 * np.mean(hits), atol=1e-3)


def test_summary_holds_students_interval_and_the_paired_test():
    ours, theirs = [90.0, 92.0, 95.0], [89.0, 92.5, 93.0]
    rows = [Row("softmax", 4, seed, value, 0.5, 1.0, 0.2) for seed, value in enumerate(theirs)]
    rows += [Row("other", 4, seed, value, 0.4, 1.0, 0.2) for seed, value in enumerate(ours)]
    softmax, other = evaluation.summarize(rows)
    assert other.interval is not None
    assert other.p_value is not None
    assert softmax.p_value is None
    assert np.isclose(other.accuracy, np.mean(ours))
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(ours), scipy.stats.sem(ours))
    assert np.isclose(other.interval, (high - low) / 2)
    test: Any = scipy.stats.ttest_1samp(np.subtract(ours, theirs), 0)
    assert np.isclose(other.p_value, test.pvalue)
