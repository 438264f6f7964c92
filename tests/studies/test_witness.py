"""`examples/softmax_is_not_enough.py`, which imports nothing of the package, finds what the package finds."""

import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples import softmax_is_not_enough as witness
from softmax_jax import normalizer, temperature
from softmax_jax.experiment.tasks.max_retrieval import sample
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.experiment.training.trainer import padded_gradient

EXAMPLE = Path(witness.__file__)
NORMALIZERS = {"softmax": normalizer("softmax"), "adaptive temperature": normalizer("adaptive")}


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def model_of(preset: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, dict]:
    """The settings and the first model of a shipped run; the example rounds as its recipe does."""
    config, parameters = load_checkpoint(SHIPPED / preset)
    jax.clear_caches()  # of einsum too, which keeps what it traced with other bits
    monkeypatch.setattr(witness, "BITS", 7 if config.task.matmul == "bfloat16" else 23)  # pyright: ignore[reportAttributeAccessIssue]
    return config, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters)


def test_the_file_is_short_and_its_own():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 200
    assert "import softmax_jax" not in text
    assert "from softmax_jax" not in text


@pytest.mark.full
@pytest.mark.parametrize("preset", ["paper", "paper_float32"])
def test_loss_and_gradients_are_those_of_the_package(preset: str, monkeypatch: pytest.MonkeyPatch):
    config, parameters = model_of(preset, monkeypatch)
    batch = config.task.training_batch(jnp.int32(0), jnp.int32(3))
    (loss, _), gradient = jax.jit(padded_gradient(build_run(config)))(parameters, batch)
    inputs = batch.items, batch.query, batch.mask, batch.answer
    loss_here, gradient_here = jax.jit(jax.value_and_grad(witness.loss))(parameters, *inputs)
    share = 2e-2 if preset == "paper" else 1e-5  # a sum in another order may round to the next bfloat16
    np.testing.assert_allclose(loss_here, loss, rtol=share)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    for leaf_here, leaf in zip(jax.tree.leaves(gradient_here), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(leaf_here, leaf, atol=share * largest)


@pytest.mark.full
def test_answers_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch):
    config, parameters = model_of("paper", monkeypatch)
    batch = sample(jax.random.key(1), 128, 1024)
    structure = build_run(config).structure

    @functools.partial(jax.jit, static_argnums=2)
    def answers(parameters, batch, name):
        here = nnx.merge(witness.STRUCTURE, parameters)(*batch[:3], witness.NORMALIZERS[name])
        return here.argmax(-1), nnx.merge(structure, parameters)(batch, NORMALIZERS[name]).scores.argmax(-1)

    for name in NORMALIZERS:
        here, of_package = answers(parameters, batch, name)
        assert (here == of_package).mean() > 0.98
        assert 0.2 < (here == batch.answer).mean() < 0.95


@pytest.mark.full
def test_the_fit_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch):
    _, parameters = model_of("paper_float32", monkeypatch)  # rounded logits tie, and compilers break ties
    seed = jax.tree.map(lambda leaf: leaf[None], parameters)
    batches = [sample(jax.random.key(n), 64, n) for n in (64, 256, 1024)]
    entropies, betas = zip(*(witness.rows(seed, *(part[None] for part in batch)) for batch in batches))
    for batch, found in zip(batches, betas):
        logits, _ = nnx.merge(witness.STRUCTURE, parameters).attend(batch.items, batch.query)
        best = temperature.target_beta(logits, batch.items[..., 0].argmax(1))
        np.testing.assert_allclose(found[0], best, rtol=1e-3)
    entropy, beta = np.concatenate(entropies, 1), np.concatenate(betas, 1)
    grid = np.zeros((*beta.shape, temperature.GRID_SIZE))
    rows = temperature.Rows(entropy, beta, np.zeros(beta.shape, bool), beta, grid, grid, target=beta)
    points = temperature.points(rows, "target")(np.ones(1))
    expected = np.polyfit(points.entropy, points.beta, 4, w=np.sqrt(points.weight))
    np.testing.assert_allclose(witness.fit(entropy.ravel(), beta.ravel()), expected, rtol=1e-6)


@pytest.mark.rare
def test_it_trains(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(witness, "CHUNK", 100)
    keys = jax.random.split(jax.random.key(0), 2)
    state, first = witness.train(witness.start(keys), keys)
    _, later = witness.train(state, jax.random.split(jax.random.key(1), 2))
    assert (later < first - 0.2).all()
    shapes = jax.tree.map(lambda leaf: leaf.shape[1:], state[0])
    assert shapes == jax.tree.map(lambda leaf: leaf.shape[1:], load_checkpoint(SHIPPED / "paper")[1])
