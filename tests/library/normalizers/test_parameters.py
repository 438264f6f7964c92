"""Objects of numbers are equal, and hash alike, exactly where a program of one is a program of the other."""

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from orbax.checkpoint import v1 as ocp

import softmax_jax as sj
from softmax_jax.normalizers.normalizer import SoftCapped
from softmax_jax.normalizers.registry import Method
from tests.tiers import methods

Z = jnp.arange(12.0).reshape(3, 4) / 5


def bound(logits, axis=-1, where=None, *, power=1.0):
    return jax.nn.softmax(power * logits, axis, where)


def objects(value: Any) -> dict[str, Any]:
    """One object of each kind, with a number."""
    return {
        "map": type(sj.entmax)(alpha=value),
        "scale": sj.LogLength(s=value),
        "tuple": sj.EntropyPolynomial(coefficients=(value, 1.0)),
        "cap": SoftCapped(value),
        "normalizer": sj.normalizer("ssmax", s=value, cap=3.0),
        "function": sj.Normalizer(jax.tree_util.Partial(bound, power=value)),
    }


def arrays(kind: Any, value: float) -> Any:
    return kind(value) if kind is float else kind(np.full((3, 1), value, np.float32))


@pytest.mark.parametrize("kind", [float, np.array, jnp.asarray], ids=["plain", "numpy", "jax"])
@pytest.mark.parametrize("what", objects(1.5))
def test_equal_numbers_make_equal_objects(what: str, kind: Any):
    one, same, other = (objects(arrays(kind, value))[what] for value in (1.5, 1.5, 1.25))
    assert one == same == copy.deepcopy(one)
    assert hash(one) == hash(same) == hash(copy.deepcopy(one))
    assert one not in (other, "one")
    assert {one: 1, other: 2}[same] == 1
    marked = jax.tree.map(lambda leaf: "frozen", one, is_leaf=lambda leaf: leaf is None)
    assert set(jax.tree.leaves(marked)) == {"frozen"}
    assert marked == copy.deepcopy(marked)


def test_arrays_of_numpy_and_jax_are_alike_and_types_and_shapes_are_not():
    kept = np.full((1, 1), 0.5, np.float32)
    numbers = [kept, jnp.asarray(kept), kept.astype(np.float64), kept[0], 0.5]
    first, *others = [sj.LogLength(number) for number in numbers]
    assert [first == other for other in others] == [True, False, False, False]
    assert hash(first) == hash(others[0])
    assert sj.ConstantTemperature(2.0) != sj.InverseTemperature(2.0)
    assert sj.normalizer("softmax") != sj.normalizer("softmax", cap=5.0)
    one, same, other = (Method("mine", bound, defaults={"power": np.full((3, 1), power)}) for power in (2.0, 2.0, 3.0))
    assert one == same != other
    assert hash(one) == hash(same)


@pytest.mark.full
def test_a_traced_number_is_like_itself_only():
    @jax.jit
    def traced(s):
        one, moved = sj.normalizer("ssmax", s=s), sj.normalizer("ssmax", s=s + 0)
        assert one == sj.normalizer("ssmax", s=s)
        assert hash(one) == hash(sj.normalizer("ssmax", s=s))
        assert one != moved
        return jax.jit(one)(Z) + jax.checkpoint(moved)(Z)

    for s in (0.4, 0.9):
        np.testing.assert_allclose(traced(jnp.float32(s)), 2 * sj.ssmax(Z, s=s), atol=1e-6)


@pytest.mark.parametrize("name", methods())
def test_every_method_may_be_compiled_by_itself(name: str):
    method = sj.METHODS[name]
    normalizer = method.build()
    assert method in {copy.deepcopy(method)}
    assert method not in (Method(name, bound), Method("other", method.map, method.scale))
    for fun in (method, normalizer, normalizer.map):
        for transform in (jax.jit, jax.checkpoint):
            assert jax.eval_shape(transform(fun), Z).shape == Z.shape


@pytest.mark.parametrize("scale", [sj.LogLength, lambda array: sj.EntropyPolynomial((array, 1.0), floor=-9.0)])
def test_a_numpy_array_that_changes_changes_no_normalizer_and_an_equal_one_makes_no_other_program(scale: Any):
    def build(array: Any) -> Any:
        return sj.Normalizer(sj.softmax, scale(array))

    array, traces = np.full((3, 1), 0.5), []

    @functools.partial(jax.jit, static_argnums=0)
    def run(normalizer: Any, z: Any) -> Any:
        traces.append(1)
        return normalizer(z)

    normalizer = build(array)
    before = run(normalizer, Z)
    array[...] = 2
    assert build(np.full((3, 1), 0.5)) == normalizer != build(array)
    np.testing.assert_allclose(run(build(np.full((3, 1), 0.5)), Z), before)
    assert len(traces) == 1
    np.testing.assert_allclose(normalizer(Z), before, atol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        jax.tree.leaves(normalizer)[0][...] = 2


@pytest.mark.filterwarnings("ignore")
def test_orbax_stores_and_restores_every_kind(tmp_path: Any):
    kinds = {kind.__name__: objects(arrays(kind, 1.5)) for kind in (float, jnp.asarray)}
    tree: dict[str, Any] = {**kinds, "plain function": sj.Normalizer(bound), "no number": sj.normalizer("softmax")}
    tree["by site"] = {0: sj.normalizer("ssmax"), 3: sj.normalizer("ssmax", s=jnp.ones((3, 1)))}
    with orbax.checkpoint.StandardCheckpointer() as keeper:
        keeper.save(tmp_path / "old", tree)
        keeper.wait_until_finished()
        assert keeper.restore(tmp_path / "old", tree) == tree
    ocp.save_pytree(tmp_path / "new", tree)
    assert ocp.load_pytree(tmp_path / "new", tree) == tree
