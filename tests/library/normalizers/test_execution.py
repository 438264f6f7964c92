"""Every method is the same wherever it runs: in `shard_map`, on explicit meshes, exported, under debug flags, empty."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import softmax_jax as sj
from softmax_jax.normalizers.row import critical_beta
from tests.tiers import HEART, full_except

every_method = pytest.mark.parametrize("name", full_except(sj.METHODS, "adaptive"))
ROWS, N = 4, 40
DIVIDED = PartitionSpec("rows")
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, N)), jnp.float32)
VISIBLE = jnp.asarray(np.random.default_rng(1).random((ROWS, N)) < 0.8).at[1].set(False)
KEY = jax.random.key(0)
OTHERS = {
    "entropy": lambda logits, where: sj.entropy(logits, where=where),
    "critical_beta": critical_beta,
    "log_softmax": lambda logits, where: jnp.where(where, sj.log_softmax(logits, where=where), 0),
    "top_k_mask": lambda logits, where: sj.top_k_mask(logits, 3, where=where),
    "top_p_mask": lambda logits, where: sj.top_p_mask(logits, 0.9, where=where),
    "top_k_mask of each row": lambda logits, where: sj.top_k_mask(
        logits, 1 + where.sum(-1, dtype=jnp.int32, keepdims=True) // 8, where=where
    ),
    "min_p_mask": lambda logits, where: sj.min_p_mask(logits, 0.3, where=where),
    "sample": lambda logits, where: sj.sample(KEY, jnp.where(where, jnp.abs(logits), 0)),
    "gumbel_softmax": lambda logits, where: sj.gumbel_softmax(KEY, logits, where=where),
}


def weights_and_gradients(name):
    """A function of logits and mask: the weights, and the gradient of an uneven sum of them."""
    normalizer = sj.normalizer(name)

    def compute(logits, where):
        weights, pull = jax.vjp(lambda z: normalizer(z, where=where), logits)
        return weights, pull(jnp.cos(7 * logits))[0]

    return compute


@functools.cache
def anywhere(name):
    """The same of a compiled program on one device."""
    return jax.jit(weights_and_gradients(name))(LOGITS, VISIBLE)


def assert_same(actual, wanted):
    assert jax.tree.map(jnp.shape, actual) == jax.tree.map(jnp.shape, wanted)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6), actual, wanted)


def assert_as_anywhere(name, compute, *operands):
    """The numbers are those of one device. Only the heart is compiled: what does not fit a place fails when traced."""
    traced = jax.jit(compute).trace(*operands)
    if name in HEART:
        assert_same(traced.lower().compile()(*operands), anywhere(name))
    return traced.out_info


def mesh_of(kind):
    return jax.make_mesh((2,), ("rows",), axis_types=(kind,))


def in_shard_map(compute, *specs):
    return jax.shard_map(compute, mesh=mesh_of(AxisType.Auto), in_specs=specs, out_specs=specs[0])


@every_method
def test_in_shard_map_with_its_checks(name):
    for spec in DIVIDED, PartitionSpec():
        assert_as_anywhere(name, in_shard_map(weights_and_gradients(name), spec, spec), LOGITS, VISIBLE)


@pytest.mark.full
@every_method
def test_numbers_may_differ_between_devices_of_equal_rows_in_shard_map(name):
    numbers, structure = jax.tree.flatten(sj.normalizer(name))
    normalizer = structure.unflatten([jnp.full((ROWS, 1), number) for number in numbers])
    rows = jnp.broadcast_to(LOGITS[0], (ROWS, N))

    def weigh(normalizer, rows):
        return normalizer(rows[:2]), jax.grad(lambda rows: (normalizer(rows[:2]) ** 2).sum())(rows)[:2]

    if numbers:
        divided = in_shard_map(weigh, DIVIDED, PartitionSpec())
        jax.eval_shape(divided, normalizer, rows)
        if name in HEART:
            assert_same(jax.jit(divided)(normalizer, rows)[0], sj.normalizer(name)(rows))


@pytest.mark.full
@every_method
def test_on_an_explicit_mesh(name):
    mesh = mesh_of(AxisType.Explicit)
    for spec in PartitionSpec("rows", None), PartitionSpec(None, "rows"):
        operands = jax.device_put((LOGITS, VISIBLE), NamedSharding(mesh, spec))
        computed = assert_as_anywhere(name, weights_and_gradients(name), *operands)
        assert all(array.sharding.spec == spec for array in computed)
    with jax.set_mesh(mesh):
        assert_as_anywhere(name, weights_and_gradients(name), LOGITS, VISIBLE)


def exported(compute):
    """A function of logits and mask, exported for any number of rows and entries."""
    sizes = export.symbolic_shape("rows, n")
    operands = jax.ShapeDtypeStruct(sizes, jnp.float32), jax.ShapeDtypeStruct(sizes, bool)
    return export.export(jax.jit(compute))(*operands).call


@pytest.mark.full
@every_method
def test_exported_with_symbolic_sizes(name, symbols_pass):
    call = exported(weights_and_gradients(name))
    if name in HEART:
        assert_same(call(LOGITS, VISIBLE), anywhere(name))


@pytest.mark.parametrize("name", full_except(OTHERS, "top_k_mask"))
def test_other_functions_of_rows(name, symbols_pass):
    compute, compiled = OTHERS[name], jax.jit(OTHERS[name])
    wanted = compiled(LOGITS, VISIBLE)
    sharding = NamedSharding(mesh_of(AxisType.Explicit), PartitionSpec("rows", None))
    assert_same(compiled(*jax.device_put((LOGITS, VISIBLE), sharding)), wanted)
    assert_same(exported(compute)(LOGITS, VISIBLE), wanted)
    if name != "log_softmax":  # which is -inf behind the mask
        with jax.debug_nans(True), jax.debug_infs(True):
            compute(LOGITS, VISIBLE if name != "critical_beta" else None)
    for shape in (0, 3), (0, N), (3, 0):
        result = compiled(jnp.zeros(shape), jnp.ones(shape, bool))
        assert result.shape[0] == shape[0]
        assert not np.any(result != -1) if name == "sample" else not np.any(result)


@pytest.mark.full
@every_method
def test_arrays_without_rows_or_entries(name):
    for shape in (0, 3), (0, N), (3, 0), (0, 0):
        logits, normalizer = jnp.zeros(shape), sj.normalizer(name)
        found = jax.eval_shape(weights_and_gradients(name), logits, jnp.ones(shape, bool))
        assert [one.shape for one in found] == [shape] * 2
        assert jax.eval_shape(lambda z, n=normalizer: n(z, 0), logits).shape == shape
        assert jax.eval_shape(jax.vmap(normalizer), logits[None]).shape == (1, *shape)


@pytest.mark.full
@pytest.mark.parametrize("name", [*HEART, "top_k", "sigmoid", "as_stieltjes"])
def test_debug_flags_do_not_stop_on_finite_results_and_do_where_weights_are_nan(name):
    with jax.debug_nans(True), jax.debug_infs(True):
        assert_same(weights_and_gradients(name)(LOGITS, VISIBLE), anywhere(name))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        sj.normalizer(name)(LOGITS * jnp.where(jnp.arange(N) == 3, jnp.inf, 1)[None])
