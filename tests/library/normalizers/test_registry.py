import contextlib
import pathlib
import re
import types
from functools import partial
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.laws.counterexamples import counterexample
from softmax_jax.laws.laws import LAWS
from softmax_jax.normalizers import registry
from softmax_jax.normalizers.normalizer import SoftCapped

CONTRIBUTING = pathlib.Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def restored():
    """Forgets whatever the test registers."""
    before = dict(sj.METHODS)
    yield
    for name in sj.METHODS.keys() - before.keys():
        del registry._methods[name]


def double(logits, axis=-1, where=None, *, factor=2.0):
    return factor * sj.softmax(logits, axis, where)


def plain(logits, axis=-1, where=None, *, factor=1.0):
    return factor * jax.nn.softmax(logits, axis, where)


PLAIN = sj.Normalizer(jax.tree_util.Partial(plain, factor=1.0))
RANGED = sj.EntropyPolynomial((1.0,), entropy_range=(0.0, 6.0))
CAPS = "0", "-1", "1e400", "1e-40"


SAME = [
    (" softmax()", sj.Normalizer(sj.softmax)),
    ("temperature(theta=2)", sj.Normalizer(sj.softmax, sj.ConstantTemperature(2.0))),
    ("ssmax(0.43, bias=-1e-1)", sj.Normalizer(sj.softmax, sj.LogLength(s=0.43, bias=-0.1))),
    ("adaptive(coefficients=[1], entropy_range=(0, 6))", sj.Normalizer(sj.softmax, RANGED)),
    ("adaptive(entropy_range=None)", sj.Normalizer(sj.softmax, sj.EntropyPolynomial())),
    ("ssmax(0.4, cap=20)", sj.Normalizer(SoftCapped(20.0, sj.Normalizer(sj.softmax, sj.LogLength(0.4))))),
    ("soft_capped(30)", sj.Normalizer(SoftCapped(30.0))),
    (sj.ssmax, sj.normalizer("ssmax")),
    (plain, PLAIN),
    (PLAIN.map, PLAIN),
    (PLAIN, PLAIN),
]


@pytest.mark.parametrize(("given", "same"), SAME)
def test_a_text_or_anything_callable_is_a_normalizer(given, same):
    assert registry.as_normalizer(given) == same


def test_numbers_as_keywords():
    assert sj.normalizer("ssmax(s=0.43)", bias=0.5).scale == sj.LogLength(0.43, 0.5)
    s = jnp.array([0.1, 0.2])[:, None, None]
    assert jax.tree.leaves(sj.normalizer(sj.ssmax, s=s))[0] is s
    assert jax.tree.leaves(sj.normalizer(plain, factor=3.0)) == [3.0]
    assert sj.METHODS["ssmax"].numbers.keys() == {"s", "bias"}
    # A whole number becomes a float, which can be differentiated.
    assert all(isinstance(number, float) for number in jax.tree.leaves(sj.normalizer("length_scaled(m=2)")))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("softmx", r"unknown normalizer 'softmx': did you mean 'softmax', .* or .*\? all of softmax_jax: python -c "),
        (
            "zzz",
            r"unknown normalizer 'zzz': all of softmax_jax: python -c .*; one of your own is written my_module:zzz$",
        ),
        ("ssmax(t=1)", r"normalizer 'ssmax' has no number 't'; it takes: s=0\.36.*, bias=0\.0"),
        ("softmax(s=1)", r"normalizer 'softmax' has no number 's'; it takes: none"),
        ("ssmax(1, 2, 3)", r"gives 3 numbers; 'ssmax' takes at most 2"),
        ("ssmax(0.43, s=1)", r"gives s twice: give each number once"),
        ("", r"cannot read the normalizer '': write a name, or a name with numbers as in 'ssmax\(s=0\.43\)'"),
        *[
            (spec, "cannot read")
            for spec in ("sj.ssmax()", "ssmax(s=print('run'))", "ssmax(s={[]: 1})", "temperature(1/3)")
        ],
        ("temperature('cold')", r"theta is 'cold'; it must be a number above 0, such as 1\.0"),
        ("temperature(True)", r"theta is True; it must be a number"),
        ("ssmax(s=1e999)", r"s is inf; it must be a finite number"),
        ("adaptive(coefficients=3)", r"coefficients is 3; it must be a tuple of numbers, such as \(0\.5, 6\.0\)"),
        ("adaptive(coefficients=(1, None))", r"each of coefficients is None; it must be a number"),
        *[(f"entmax15(cap={cap})", r"cap is .*; it must be .* above 0, from 1e-6 to 1e30") for cap in CAPS],
        ("softmax(capp=3)", r"no number 'capp'; did you mean 'cap'\?"),
        ("adaptive(entropy_range=(1, 2, 3))", r"entropy_range is \(1\.0, 2\.0, 3\.0\); it must be"),
    ],
)
def test_what_cannot_be_built_says_so_in_one_line(spec, message):
    with pytest.raises(ValueError, match=rf"^.*{message}.*$"):
        sj.normalizer(spec)


def without_default(logits, axis=-1, where=None, *, alpha):
    return alpha * logits


def also_s(logits, axis=-1, where=None, *, s=1.0):
    return s * logits


TEMPERATURE = sj.softmax, sj.ConstantTemperature


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sj.normalizer("temperature(0.2)", theta=0.3), "gives theta twice"),
        (lambda: SoftCapped(-2.0), r"cap is -2.0; it must be a finite number above 0"),
        (lambda: sj.register("softmax", double), "cannot register 'softmax': a name must be new and"),
        (lambda: sj.register("not a name", double), "cannot register 'not a name': a name must be .* identifier"),
        (lambda: sj.register("mine", without_default), r"numbers without a default \['alpha'\]"),
        (lambda: sj.register("mine", also_s, sj.LogLength), r"claimed twice \['s'\]"),
        (lambda: sj.register("mine", *TEMPERATURE, t=1.0), r"no number 't'; it takes: theta="),
        (lambda: sj.register("mine", *TEMPERATURE, theta=0.0), r"theta is 0\.0; it must be a finite number above 0"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_registered(call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert "mine" not in sj.METHODS


@hypothesis.given(st.text() | st.text("ssmax()=,.0123 '[]{}*"))
def test_any_text_gives_a_normalizer_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert isinstance(sj.normalizer(text), sj.Normalizer)


@pytest.mark.usefixtures("restored")
def test_a_registered_method_works_by_name():
    sj.register("double", double, sj.LogLength)
    assert list(sj.METHODS)[-1] == "double"
    assert sj.METHODS["double"].numbers.keys() == {"s", "bias", "factor"}
    weights = sj.normalizer("double(s=0.5, factor=3)")(jnp.arange(4.0))
    np.testing.assert_allclose(weights, 3 * sj.ssmax(jnp.arange(4.0), s=0.5), rtol=1e-6)
    cold = sj.register("cold", sj.softmax, sj.ConstantTemperature, theta=0.5)
    assert cold.numbers == {"theta": 0.5}
    assert [sj.normalizer(text).scale for text in ("cold", "cold(2)")] == [*map(sj.ConstantTemperature, (0.5, 2.0))]
    with pytest.raises(TypeError):
        sj.METHODS["mine"] = cold  # pyright: ignore[reportIndexIssue]


@pytest.mark.usefixtures("restored")
def test_the_example_of_contributing_runs_and_obeys_the_laws():
    known = set(sj.METHODS)
    example = re.search(r"```python\n(.*?)```", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    exec(example[1], {})
    (name,) = sj.METHODS.keys() - known
    assert counterexample(sj.normalizer(name), LAWS[0], "float32") == ""
    np.testing.assert_allclose(sj.normalizer(name)(jnp.array([-1.0, 3.0])), [0, 3 / 2], rtol=1e-6)


OWN = """
import jax
import softmax_jax as sj

class Sharp(sj.Map):
    sums_to_one = False
    power: float = sj.number(default=1.0, learn=True)

    def weights(self, row):
        return jax.nn.sigmoid(row.logits) ** row.number(self.power)

class Given:
    def __init__(self, power):
        self.power = power

    def __call__(self, logits, axis=-1, where=None):
        return logits**self.power

sharp = Sharp()
kept = sj.register("kept_in_a_module", Sharp())
sj.register("only_registered", Sharp())
pair = sj.Normalizer(sj.softpick, sj.LogLength(s=0.5))
capped = sj.normalizer("softpick", cap=5.0)

def function(logits, axis=-1, where=None, *, factor=2.0):
    return factor * sj.softmax(logits, axis, where)

class Steep(sj.Scale):
    def of_row(self, row):
        return row.number(2.0)

of_one = lambda logits: logits
summed = lambda logits, axis=-1, where=None: logits.sum(axis)
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch, restored):
    """A module of the user's."""
    name = "own_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN)
    (tmp_path / f"{name}_broken.py").write_text("1 +")
    (tmp_path / f"{name}_raises.py").write_text("\nraise RuntimeError('no\\nuse')")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_normalizer_of_a_module_needs_no_registration(own):
    logits, where = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])
    sigmoid = jnp.where(where, jax.nn.sigmoid(logits), 0.0)
    named = dict.fromkeys(("sharp", "kept", "only_registered", " sharp() ", "Sharp", "Sharp()"), 1)
    for name, power in (named | {"sharp(power=3.0)": 3}).items():
        found = sj.normalizer(f"{own}:{name}")(logits, where=where)
        np.testing.assert_allclose(found, sigmoid**power, rtol=1e-6)
    assert registry.method_of(f"{own}:sharp")[0].learned == ("power",)
    assert sj.normalizer(f"{own}:pair") == sj.Normalizer(sj.softpick, sj.LogLength(s=0.5))
    for spec, cap in ("capped", 5.0), ("capped(cap=3)", 3.0):
        assert sj.normalizer(f"{own}:{spec}") == sj.normalizer("softpick", cap=cap)
    for spec, factor in ("function", 2), ("function(factor=3.0)", 3):
        found = sj.normalizer(f"{own}:{spec}")(logits)
        np.testing.assert_allclose(found, factor * jax.nn.softmax(logits), rtol=1e-6)


def test_a_function_is_taken_wherever_a_normalizer_is():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 2, 4)), jnp.float32)
    none: Any = types.SimpleNamespace(init=lambda numbers: None, update=lambda gradient, state, _: (gradient, state))

    def attend(x):
        return jax.nn.softmax(x @ x.mT) @ x

    learned = sj.calibrate(attend, plain, learn=(), loss=lambda f, x: f(x).sum(), batches=[x], optimizer=none)
    weigh: list[Any] = [sj.attention_fn(plain), sj.NnxAttention(plain), partial(sj.LinenAttention(plain).apply, {})]
    layers = [sj.dot_product_attention, *weigh, partial(sj.dot_product_attention, normalizer=plain)]

    @jax.jit
    def by_each(x):
        swaps = [sj.swap(attend, swapped)(x) for swapped in (plain, {"*": plain}, learned)]
        return [attend(x), *swaps, sj.probe(attend, plain)(x)[0]], [layer(x, x, x) for layer in layers]

    for expected, *found in by_each(x):
        for output in found:
            np.testing.assert_allclose(output, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no_such_module:sigmoid", r"the module no_such_module cannot be imported .*a file in this directory"),
        ("{}_broken:sigmoid", r"_broken cannot be imported \(SyntaxError.*_broken.py"),
        ("{}_raises:sigmoid", r"_raises cannot be imported \(RuntimeError: no use .*_raises.py:2\)"),
        ("{}:shap", r"did you mean 'sharp'\? .* must hold a normalizer of that name"),
        ("{}:number", r"number is 3; it must be a map.* cannot be called so"),
        ("{}:Given", r"is the class Given; it must be a map, .* power of this one lacks one"),
        ("{}:of_one", r"is the function .*; .* called as jax.nn.softmax.* it says: "),
        ("{}:summed", r"it gives the shape \(2,\) to logits of shape \(2, 3\)"),
        ("{}:sharp(power='a')", r"power is 'a'"),
        ("{}:sharp(pover=1.0)", r"has no number 'pover'; did you mean 'power'"),
        ("{}:", r"cannot read the normalizer"),
        ("{}:Steep", r"is the scale Steep\(\); it must lie under a map, .*\(map=sj.softmax, scale=Steep\(\)\)"),
        ("sigmod", r"one of your own is written my_module:sigmod"),
    ],
)
def test_what_a_module_lacks_is_said_in_one_line(own, text, said):
    with pytest.raises(ValueError, match=rf"^.*{said}.*$"):
        sj.normalizer(text.format(own))
