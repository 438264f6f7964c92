import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.measures import evaluation, known_items
from softmax_jax.measures.table import EVALUATION
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks import priorities, products
from softmax_jax.tasks.max_retrieval import MaxRetrieval, sample
from softmax_jax.training.trainer import build_model

ROUNDED = MaxRetrieval(width=8, matmul="bfloat16")


def model_of(task):
    structure, initialize = build_model(task)
    return nnx.merge(structure, initialize(jax.random.key(1)))


@pytest.mark.parametrize(
    "rounded", [*(pytest.param(place, marks=pytest.mark.full) for place in products.PLACES[:-1]), "all"]
)
def test_a_table_finds_what_the_encoder_computes(rounded):
    model = model_of(MaxRetrieval(width=8, matmul="bfloat16", rounded=rounded))
    batch = sample(jax.random.key(0), 3, 2000, jnp.array([2000, 5, 1]))
    plain = model.encode(batch.items, batch.query)
    known = known_items.KnownItems(model).encode(batch.items, batch.query)
    hidden = products.rounded_to("bfloat16", plain.hidden) if rounded == "all" else plain.hidden
    for found, computed in zip(known, plain._replace(hidden=hidden)):
        np.testing.assert_allclose(found[batch.mask], computed[batch.mask], rtol=1e-5, atol=1e-6)


def test_the_table_has_every_item_that_is_drawn():
    """From the least ρ above 0 to the largest below 1, which rounds to 1."""
    rho = jnp.array([0.0, 2.0**-23, 3 * 2.0**-23, 0.3, 0.5, 1 - 2.0**-8, 1 - 2.0**-23])
    items = jnp.stack([jnp.concatenate([rho[:, None], jnp.tile(jnp.eye(10)[k], (7, 1))], 1) for k in range(10)])
    found = known_items.every_item()[known_items.entry_of(items)]
    np.testing.assert_array_equal(found[..., 0], jax.lax.reduce_precision(items[..., 0], 8, 7))
    np.testing.assert_array_equal(found[..., 1:], items[..., 1:])


def test_an_evaluation_reads_a_table_where_that_pays(monkeypatch):
    _, initialize = build_model(ROUNDED)
    parameters = jax.vmap(initialize)(jax.random.split(jax.random.key(0), 2))
    named = {name: normalizer(name) for name in ("softmax", "softpick", "hardmax")}
    used = []

    def frame():
        found = evaluation.evaluate(parameters, named, seeds=(4, 5), task=ROUNDED, lengths=(640,), sets=8)
        return evaluation.frame_of(found).select(*EVALUATION).to_numpy()

    plain = frame()
    monkeypatch.setattr(known_items, "ENTRIES", 8 * 640)
    monkeypatch.setattr(evaluation, "KnownItems", lambda model: used.append(model) or known_items.KnownItems(model))
    as_many = frame()
    assert not used
    assert (as_many == plain).all()
    monkeypatch.setattr(known_items, "ENTRIES", 8 * 640 - 1)
    by_table = frame()
    assert used
    np.testing.assert_allclose(by_table, plain, rtol=1e-5)


@pytest.mark.parametrize("task", [MaxRetrieval(), MaxRetrieval(matmul="bfloat16", priority=priorities.NEEDLE)])
def test_items_that_differ_without_end_have_no_table(task):
    assert known_items.pays(ROUNDED, 2**20)
    assert not known_items.pays(task, 2**20)
