"""Every method is the same wherever it runs: in `shard_map`, on explicit meshes, exported, under debug flags, empty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import softmax_jax as sj
from softmax_jax.normalizers.rows import critical_beta

every_method = pytest.mark.parametrize("name", sj.METHODS)
ROWS, N = 4, 40
DIVIDED = PartitionSpec("rows")
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, N)), jnp.float32)
VISIBLE = jnp.asarray(np.random.default_rng(1).random((ROWS, N)) < 0.8).at[1].set(False)
KEY = jax.random.key(0)
OTHERS = {
    "entropy": sj.entropy,
    "critical_beta": critical_beta,
    "log_softmax": lambda logits, where: jnp.where(where, sj.log_softmax(logits, where=where), 0),
    "top_k_mask": lambda logits, where: sj.top_k_mask(logits, 3, where=where),
    "top_p_mask": lambda logits, where: sj.top_p_mask(logits, 0.9, where=where),
    "sample": lambda logits, where: sj.sample(KEY, jnp.where(where, jnp.abs(logits), 0)),
    "gumbel_softmax": lambda logits, where: sj.gumbel_softmax(KEY, logits, where=where),
}


def weights_and_gradients(name):
    """A function of logits and mask: weights, and the products of their Jacobian with a vector from both sides."""
    normalizer = sj.normalizer(name)

    def compute(logits, where):
        vector = jnp.cos(7 * logits)
        weights, pull = jax.vjp(lambda z: normalizer(z, where=where), logits)
        return weights, pull(vector)[0], jax.jvp(lambda z: normalizer(z, where=where), (logits,), (vector,))[1]

    return compute


def assert_same(actual, wanted):
    assert jax.tree.map(jnp.shape, actual) == jax.tree.map(jnp.shape, wanted)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6), actual, wanted)


def mesh_of(kind):
    return jax.make_mesh((2,), ("rows",), axis_types=(kind,))


@every_method
def test_in_shard_map_with_its_checks(name):
    compute = weights_and_gradients(name)
    for spec in DIVIDED, PartitionSpec():  # what is the same on all devices is known to stay so
        divided = jax.shard_map(compute, mesh=mesh_of(AxisType.Auto), in_specs=spec, out_specs=spec)
        assert_same(jax.jit(divided)(LOGITS, VISIBLE), jax.jit(compute)(LOGITS, VISIBLE))


@every_method
def test_numbers_may_differ_between_devices_of_equal_rows_in_shard_map(name):
    numbers, structure = jax.tree.flatten(sj.normalizer(name))
    normalizer = structure.unflatten([jnp.full((ROWS, 1), number) for number in numbers])
    rows = jnp.broadcast_to(LOGITS[0], (ROWS, N))

    def weigh(normalizer, rows):
        return normalizer(rows[:2]), jax.grad(lambda rows: (normalizer(rows[:2]) ** 2).sum())(rows)[:2]

    divided = jax.shard_map(
        weigh, mesh=mesh_of(AxisType.Auto), in_specs=(DIVIDED, PartitionSpec()), out_specs=(DIVIDED, PartitionSpec())
    )
    if numbers:
        weights, _ = jax.jit(divided)(normalizer, rows)
        assert_same(weights, sj.normalizer(name)(rows))


@every_method
@pytest.mark.parametrize("spec", [("rows", None), (None, "rows")], ids=str)
def test_on_an_explicit_mesh(name, spec):
    mesh, compute = mesh_of(AxisType.Explicit), weights_and_gradients(name)
    wanted = jax.jit(compute)(LOGITS, VISIBLE)
    operands = jax.device_put((LOGITS, VISIBLE), NamedSharding(mesh, PartitionSpec(*spec)))
    assert_same(jax.jit(compute)(*operands), wanted)
    with jax.set_mesh(mesh):
        weights = jax.jit(sj.normalizer(name).__call__)(operands[0])
    assert jax.typeof(weights).sharding.spec == PartitionSpec(*spec)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_of_rows_on_an_explicit_mesh(name):
    operands = jax.device_put((LOGITS, VISIBLE), NamedSharding(mesh_of(AxisType.Explicit), PartitionSpec("rows", None)))
    assert_same(jax.jit(OTHERS[name])(*operands), OTHERS[name](LOGITS, VISIBLE))


@every_method
def test_exported_with_symbolic_sizes(name):
    compute = jax.jit(weights_and_gradients(name))
    sizes = export.symbolic_shape("rows, n")
    operands = jax.ShapeDtypeStruct(sizes, jnp.float32), jax.ShapeDtypeStruct(sizes, bool)
    assert_same(export.export(compute)(*operands).call(LOGITS, VISIBLE), compute(LOGITS, VISIBLE))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_of_rows_exported_with_symbolic_sizes(name):
    sizes = export.symbolic_shape("rows, n")
    operands = jax.ShapeDtypeStruct(sizes, jnp.float32), jax.ShapeDtypeStruct(sizes, bool)
    exported = export.export(jax.jit(OTHERS[name]))(*operands)
    assert_same(exported.call(LOGITS, VISIBLE), OTHERS[name](LOGITS, VISIBLE))


@every_method
@pytest.mark.parametrize("shape", [(0, 3), (0, N), (3, 0), (0, 0)], ids=str)
def test_arrays_without_rows_or_entries(name, shape):
    logits, normalizer = jnp.zeros(shape), sj.normalizer(name)
    compute = jax.jit(weights_and_gradients(name))
    assert_same(compute(logits, jnp.ones(shape, bool)), (logits,) * 3)
    assert normalizer(logits, 0).shape == shape
    assert jax.vmap(normalizer)(logits[None]).shape == (1, *shape)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", [(0, 3), (0, N), (3, 0)], ids=str)
def test_other_functions_of_arrays_without_rows_or_entries(name, shape):
    result = OTHERS[name](jnp.zeros(shape), jnp.ones(shape, bool))
    assert result.shape[0] == shape[0]
    assert not np.any(result != -1) if name == "sample" else not np.any(result)


@every_method
@pytest.mark.parametrize("flag", [jax.debug_nans, jax.debug_infs], ids=["nans", "infs"])
def test_debug_flags_do_not_stop_on_finite_results(name, flag):
    compute = weights_and_gradients(name)
    with flag(True):
        computed = compute(LOGITS, VISIBLE)
    assert_same(computed, jax.jit(compute)(LOGITS, VISIBLE))


@pytest.mark.parametrize("name", OTHERS)
def test_debug_flags_do_not_stop_other_functions_of_rows(name):
    with jax.debug_nans(True), jax.debug_infs(True):
        OTHERS[name](LOGITS, VISIBLE if name != "critical_beta" else None)


def test_debug_nans_stops_where_weights_are_nan():
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        sj.ssmax(LOGITS * jnp.where(jnp.arange(N) == 3, jnp.inf, 1)[None])
