"""Attention is the same wherever it runs, in every form: see the laws of this name for normalizers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import softmax_jax as sj
from tests.tiers import full_except

FORMS = {
    "dense": {"implementation": "dense"},
    "blocks": {"implementation": "streaming", "block_size": 5},
    "fused": {"implementation": "xla"},
}

every_form = pytest.mark.parametrize(
    ("form", "name"),
    [("blocks", "adaptive"), *full_except([("fused", "adaptive")])],
)
QUERY, KEY, VALUE = (jnp.asarray(array, jnp.float32) for array in np.random.default_rng(0).normal(size=(3, 2, 8, 2, 4)))
MASK = jnp.asarray(np.random.default_rng(1).random((2, 1, 8, 8)) < 0.7).at[0, :, 3].set(False)


def output_and_gradients(name, form):
    """A function of query, key, value and mask: the output, and the gradients of the sum of its squares."""

    def compute(query, key, value, mask):
        def loss(*arrays):
            output = sj.dot_product_attention(*arrays, mask=mask, normalizer=name, is_causal=True, **FORMS[form])
            return jnp.sum(output**2), output

        (_, output), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(query, key, value)
        return output, gradients

    return compute


@functools.cache
def anywhere(name):
    return jax.jit(output_and_gradients(name, "dense"))(QUERY, KEY, VALUE, MASK)


def assert_same(actual, wanted):
    assert jax.tree.map(jnp.shape, actual) == jax.tree.map(jnp.shape, wanted)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), actual, wanted)


@pytest.mark.full
@every_form
def test_in_shard_map_with_its_checks(name, form):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    heads, batch = PartitionSpec(None, None, "x"), PartitionSpec("x")
    for specs in (heads, heads, heads, PartitionSpec()), (batch,) * 4:
        out = specs[0], specs[:3]
        divided = jax.shard_map(output_and_gradients(name, form), mesh=mesh, in_specs=specs, out_specs=out)
        assert_same(jax.jit(divided)(QUERY, KEY, VALUE, MASK), anywhere(name))


@pytest.mark.full
@every_form
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_on_a_mesh(name, form, kind):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    for spec in [("x",), (None, None, "x"), (None, "x")]:
        divided = NamedSharding(mesh, PartitionSpec(*spec))
        arrays = jax.device_put((QUERY, KEY, VALUE), divided)
        mask = jax.device_put(MASK, NamedSharding(mesh, PartitionSpec()))
        assert_same(jax.jit(output_and_gradients(name, form))(*arrays, mask), anywhere(name))


@pytest.mark.full
@every_form
def test_exported_with_symbolic_sizes(name, form, symbols_pass):
    batch, length, heads = export.symbolic_shape("batch, length, heads")
    array = jax.ShapeDtypeStruct((batch, length, heads, 4), jnp.float32)
    mask = jax.ShapeDtypeStruct((batch, 1, length, length), bool)
    exported = export.export(jax.jit(output_and_gradients(name, form)))(array, array, array, mask)
    assert_same(exported.call(QUERY, KEY, VALUE, MASK), anywhere(name))


@every_form
def test_without_batch_queries_keys_or_size(name, form):
    for arrays in (
        (QUERY[:0], KEY[:0], VALUE[:0], MASK[:0]),
        (QUERY[:, :0], KEY, VALUE, MASK[:, :, :0]),
        (QUERY, KEY[:, :0], VALUE[:, :0], MASK[..., :0]),
        (QUERY[..., :0], KEY[..., :0], VALUE[..., :0], MASK),
    ):
        output, gradients = jax.jit(output_and_gradients(name, form))(*arrays)
        assert output.shape == arrays[0].shape
        for gradient, array in zip(gradients, arrays):
            assert gradient.shape == array.shape
            assert not np.any(gradient)


@pytest.mark.full
@every_form
def test_debug_flags_do_not_stop_on_finite_results(name, form):
    with jax.debug_nans(True), jax.debug_infs(True):
        assert_same(output_and_gradients(name, form)(QUERY, KEY, VALUE, MASK), anywhere(name))
