import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.tasks.transformer import Transformer
from softmax_jax.normalizers.registry import METHODS, normalizer
from tests.tiers import rare_except

HIDDEN, HEADS, LAYERS = 16, 4, 2
INPUTS = jax.random.normal(jax.random.key(0), (3, 9, 5))
LATER = INPUTS.at[:, 5:].add(1.0)
FULL = jnp.ones((3, 9), bool)


def built(name, learn=(), **options):
    return Transformer(
        5, 6, normalizer(name), learn, hidden=HIDDEN, heads=HEADS, layers=LAYERS, rngs=nnx.Rngs(0), **options
    )


scores = nnx.jit(lambda model, inputs, mask=None: model(inputs, mask))


def parameters(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.full
@pytest.mark.parametrize(("name", "causal"), [("ssmax", True), ("ssmax", False), ("signed_l1", True)])
def test_a_masked_tail_equals_the_shorter_sequence(name, causal):
    model = built(name, causal=causal)
    lengths = jnp.array([9, 4, 1])
    whole = scores(model, INPUTS, jnp.arange(9)[None, :] < lengths[:, None])
    for index, length in ((1, 4), (2, 1)):
        short = scores(model, INPUTS[index : index + 1, :length])
        np.testing.assert_allclose(whole[index : index + 1, :length], short, atol=1e-5)


@pytest.mark.full
def test_a_causal_model_sees_nothing_later_and_another_sees_all():
    before, after = (scores(built("softmax", causal=True), inputs) for inputs in (INPUTS, LATER))
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not np.allclose(before[:, 5:], after[:, 5:], atol=1e-2)
    before, after = (scores(built("softmax"), inputs) for inputs in (INPUTS, LATER))
    assert not np.allclose(before[:, :5], after[:, :5], atol=1e-2)


@pytest.mark.full
def test_sequences_of_a_batch_do_not_meet_and_order_matters_only_by_the_inputs():
    """No position but what the features carry: permuted inputs give permuted scores."""
    model, order = built("softmax"), jnp.array([3, 1, 4, 0, 5, 8, 2, 6, 7])
    before, changed, permuted = (
        scores(model, inputs, FULL) for inputs in (INPUTS, INPUTS.at[1].add(1.0), INPUTS[:, order])
    )
    np.testing.assert_allclose(changed[::2], before[::2], atol=1e-6)
    assert not np.allclose(changed[1], before[1], atol=1e-2)
    np.testing.assert_allclose(permuted, before[:, order], atol=1e-5)


def test_what_a_normalizer_learns_leaves_all_other_parameters_alike():
    plain, learning = parameters(built("softmax")), parameters(built("ssmax", ("s",)))
    for block in learning["blocks"].values():
        assert set(block["attention"]) == {"s"}
        block.pop("attention")
    for block in plain["blocks"].values():
        block.pop("attention", None)
    jax.tree.map(np.testing.assert_array_equal, plain, learning)


LEARNED = [(name, method.learned) for name, method in METHODS.items() if method.learned]


@pytest.mark.parametrize(("name", "numbers"), rare_except(LEARNED, "ssmax", "asentmax"))
def test_every_head_of_every_layer_learns_its_own_numbers(name, numbers):
    # Rows of nine lie at a bound of these by their own numbers, where there is no gradient.
    within = {"clipped_ssmax": "(s=0.6)", "grok2": "(s=0.6)", "length_boost": "(bias=0)"}
    structure, state = nnx.split(built(name + within.get(name, ""), numbers), nnx.Param)

    def loss(state):
        return (nnx.merge(structure, state)(INPUTS, FULL) ** 2).sum()

    gradient = nnx.to_pure_dict(jax.jit(jax.grad(loss))(state))
    for layer in range(LAYERS):
        for number in numbers:
            slopes = np.asarray(gradient["blocks"][layer]["attention"][number])
            assert slopes.shape == (HEADS, 1, 1)
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
