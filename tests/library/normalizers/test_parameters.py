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
SCALES = [
    one for one in vars(sj).values() if isinstance(one, type) and issubclass(one, sj.Scale) and one is not sj.Scale
]


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
    assert one == same
    assert one == copy.deepcopy(one)
    assert hash(one) == hash(same) == hash(copy.deepcopy(one))
    assert one != other
    assert one != "one"
    assert {one: 1, other: 2}[same] == 1
    assert same in [other, one]
    assert other not in (one, same)
    assert functools.lru_cache(lambda one: [one])(one)[0] is one


def test_arrays_of_numpy_and_jax_are_alike_and_types_and_shapes_are_not():
    kept = np.full((1, 1), 0.5, np.float32)
    numbers = [kept, jnp.asarray(kept), kept.astype(np.float64), kept[0], 0.5]
    first, *others = [sj.LogLength(number) for number in numbers]
    assert [first == other for other in others] == [True, False, False, False]
    assert hash(first) == hash(others[0])
    assert sj.ConstantTemperature(2.0) != sj.InverseTemperature(2.0)
    assert sj.normalizer("softmax") != sj.normalizer("softmax", cap=5.0)


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
    assert method == copy.deepcopy(method)
    assert method in {copy.deepcopy(method)}
    for fun in (method, normalizer, normalizer.map):
        for transform in (jax.jit, jax.checkpoint):
            assert jax.eval_shape(transform(fun), Z).shape == Z.shape


def test_methods_are_equal_by_name_and_numbers():
    ones = [Method("mine", bound, defaults={"power": np.full((3, 1), power)}) for power in (2.0, 2.0, 3.0)]
    assert ones[0] == ones[1] != ones[2]
    assert hash(ones[0]) == hash(ones[1])
    assert ones[0] != Method("other", bound, defaults=ones[0].defaults)


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_may_be_compiled_by_itself(scale: Any):
    knots: Any = [jnp.array([1.0, 2.0]), jnp.array([1.0, 3.0])] if scale is sj.EntropyInterpolation else []
    one = scale(*knots)
    np.testing.assert_allclose(jax.jit(one, static_argnums=1)(Z, -1, None), one(Z, -1, None), atol=1e-6)
    assert one == scale(*knots)


@pytest.mark.full
def test_a_changed_number_is_another_program_and_an_equal_one_is_not():
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(normalizer, z):
        traces.append(1)
        return normalizer(z)

    for make in (lambda s: s, lambda s: np.full((3, 1), s), lambda s: jnp.full((3, 1), s)):
        for s in (0.4, 0.4, 0.7):
            np.testing.assert_allclose(run(sj.normalizer("ssmax", s=make(s)), Z), sj.ssmax(Z, s=s), atol=1e-6)
    assert len(traces) == 6


@pytest.mark.parametrize("place", ["number", "of many"])
def test_a_numpy_array_that_changes_changes_no_normalizer(place: str):
    array = np.full((3, 1), 0.5)
    scale: Any = sj.LogLength(array) if place == "number" else sj.EntropyPolynomial((array, 1.0), floor=-9.0)
    normalizer = sj.Normalizer(sj.softmax, scale)
    compiled = jax.jit(normalizer)
    before = compiled(Z)
    array[...] = 2
    np.testing.assert_allclose(compiled(Z), before)
    np.testing.assert_allclose(normalizer(Z), before, atol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        jax.tree.leaves(normalizer)[0][...] = 2


@pytest.mark.parametrize("what", objects(1.5))
def test_leaves_may_be_anything(what: str):
    one = objects(1.5)[what]
    marked = jax.tree.map(lambda leaf: "frozen", one, is_leaf=lambda leaf: leaf is None)
    assert set(jax.tree.leaves(marked)) == {"frozen"}
    assert marked == copy.deepcopy(marked)


@pytest.mark.filterwarnings("ignore")
def test_orbax_stores_and_restores_every_kind(tmp_path: Any):
    tree: dict[str, Any] = {
        f"{name} {kind.__name__}": objects(arrays(kind, 1.5))[name]
        for name in objects(1.5)
        for kind in (float, jnp.asarray)
    }
    tree |= {"plain function": sj.Normalizer(bound), "no number": sj.normalizer("softmax")}
    tree["by site"] = {0: sj.normalizer("ssmax"), 3: sj.normalizer("ssmax", s=jnp.ones((3, 1)))}
    with orbax.checkpoint.StandardCheckpointer() as keeper:
        keeper.save(tmp_path / "old", tree)
    with orbax.checkpoint.StandardCheckpointer() as keeper:
        found = keeper.restore(tmp_path / "old", tree)
    ocp.save_pytree(tmp_path / "new", tree)
    for restored in (found, ocp.load_pytree(tmp_path / "new", tree)):
        assert restored == tree
