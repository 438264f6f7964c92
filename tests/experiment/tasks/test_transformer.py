import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.tasks.transformer import Transformer
from softmax_jax.normalizers.registry import METHODS, normalizer
from tests.tiers import rare_except

HIDDEN, HEADS, LAYERS = 16, 4, 2
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 9, 5)), jnp.float32)
LATER = INPUTS + jnp.asarray(np.arange(9) >= 5, jnp.float32)[None, :, None]
FULL = jnp.asarray(np.ones((3, 9), bool))


def built(name, learn=(), **options):
    sizes = {"hidden": HIDDEN, "heads": HEADS, "layers": LAYERS}
    return Transformer(5, 6, normalizer(name), learn, **sizes, rngs=nnx.Rngs(0), **options)


scores = nnx.jit(lambda model, inputs, mask=None: model(inputs, mask))


@pytest.mark.full
@pytest.mark.parametrize(("name", "causal"), [("ssmax", False), ("signed_l1", True)])
def test_a_masked_tail_equals_the_shorter_sequence(name, causal):
    model = built(name, causal=causal)
    lengths = jnp.array([9, 4, 1])
    whole = scores(model, INPUTS, jnp.arange(9)[None, :] < lengths[:, None])
    for index, length in ((1, 4), (2, 1)):
        short = scores(model, INPUTS[index : index + 1, :length])
        np.testing.assert_allclose(whole[index : index + 1, :length], short, atol=1e-5)


@pytest.mark.full
def test_what_a_position_sees():
    """No position but what the features carry: permuted inputs give permuted scores."""
    model, order = built("softmax"), jnp.array([3, 1, 4, 0, 5, 8, 2, 6, 7])
    before, changed, permuted, later = (
        scores(model, inputs, FULL) for inputs in (INPUTS, INPUTS.at[1].add(1.0), INPUTS[:, order], LATER)
    )
    np.testing.assert_allclose(changed[::2], before[::2], atol=1e-6)  # no other sequence of the batch
    assert not np.allclose(changed[1], before[1], atol=1e-2)
    np.testing.assert_allclose(permuted, before[:, order], atol=1e-5)
    assert not np.allclose(before[:, :5], later[:, :5], atol=1e-2)
    before, later = (scores(built("softmax", causal=True), inputs) for inputs in (INPUTS, LATER))
    np.testing.assert_allclose(before[:, :5], later[:, :5], atol=1e-6)  # nothing later in a causal model
    assert not np.allclose(before[:, 5:], later[:, 5:], atol=1e-2)


def test_what_a_normalizer_learns_leaves_all_other_parameters_alike():
    models = ("softmax", ()), ("ssmax", ("s",))
    states = jax.jit(lambda: [nnx.state(built(name, learn), nnx.Param) for name, learn in models])()
    plain, learning = map(nnx.to_pure_dict, states)
    for layer in range(LAYERS):
        assert set(learning["blocks"][layer].pop("attention")) == {"s"}
        plain["blocks"][layer].pop("attention", None)
    jax.tree.map(np.testing.assert_array_equal, plain, learning)


LEARNED = [(name, method.learned) for name, method in METHODS.items() if method.learned]


@pytest.mark.parametrize(("name", "numbers"), rare_except(LEARNED, "ssmax", "asentmax"))
def test_every_head_of_every_layer_learns_its_own_numbers(name, numbers):
    # Rows of nine lie at a bound of these by their own numbers, where there is no gradient.
    within = {"clipped_ssmax": "(s=0.6)", "grok2": "(s=0.6)", "length_boost": "(bias=0)"}
    structure, state = nnx.split(built(name + within.get(name, ""), numbers), nnx.Param)
    gradient = jax.jit(jax.grad(lambda state: (nnx.merge(structure, state)(INPUTS, FULL) ** 2).sum()))(state)
    for layer in range(LAYERS):
        attention = nnx.to_pure_dict(gradient)["blocks"][layer]["attention"]
        slopes = np.stack([attention[number] for number in numbers])
        assert slopes.shape == (len(numbers), HEADS, 1, 1)
        assert np.isfinite(slopes).all()
        assert (slopes != 0).all()


@pytest.mark.full
def test_dropout_needs_rngs():
    model, plain = built("softmax", dropout=0.5), built("softmax")
    dropped = nnx.jit(lambda model, key: model(INPUTS, FULL, nnx.Rngs(dropout=key)))
    kept = scores(model, INPUTS, FULL)
    np.testing.assert_array_equal(kept, scores(plain, INPUTS, FULL))
    once, again, other = (dropped(model, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert not np.allclose(once, kept, atol=1e-2)
    assert not np.allclose(once, other, atol=1e-2)
    np.testing.assert_allclose(dropped(plain, jax.random.key(1)), kept, atol=1e-6)


@pytest.mark.full
def test_the_last_positions_are_those_of_all_where_the_last_block_computes_no_others():
    model = Transformer(3, 5, normalizer("ssmax"), hidden=8, heads=2, rngs=nnx.Rngs(0))
    inputs = jax.random.normal(jax.random.key(1), (2, 7, 3))
    mask = jnp.arange(7)[None] >= jnp.array([[0], [3]])
    np.testing.assert_allclose(model(inputs, mask, last=2), model(inputs, mask)[:, -2:], atol=1e-6)
