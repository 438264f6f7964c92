"""For each promise a normalizer that breaks it, and is found out."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import softmax_jax as sj
from softmax_jax.experiment.commands import check as command
from softmax_jax.laws import laws
from softmax_jax.laws.checker import (
    Checked,
    Promise,
    catch_errors,
    check_gradient,
    check_half_types,
    check_lengths,
    check_surroundings,
)
from softmax_jax.laws.counterexamples import counterexample, describe
from softmax_jax.laws.laws import LAWS, Finding, Rows
from softmax_jax.normalizers.registry import as_normalizer
from tests.tiers import full_except


def function(weigh):
    """A normalizer of a function of logits, axis and mask, from which what is masked is hidden beforehand."""

    def weigh_visible(logits, axis=-1, where=None):
        where = jnp.ones_like(logits, bool) if where is None else where
        return weigh(jnp.where(where, logits, 0), axis, where)

    return weigh_visible


def by_place(z, axis=-1, where=None):
    return sj.softmax(z + jax.lax.broadcasted_iota(z.dtype, z.shape, z.ndim - 1), axis, where)


def naive(z, axis, where):
    exponentials = jnp.where(where, jnp.exp(z), 0)
    return exponentials / jnp.sum(exponentials, axis, keepdims=True)


def exact(logits, axis, where):
    return sj.softmax(logits, axis, where)


class Map(sj.Map):
    def weights(self, row):
        return jax.nn.softmax(row.logits, row.axis)


class ThatClaims(Map):
    """Softmax1, said to be invariant to shifts and to sum to 1."""

    shift_invariant = True

    def weights(self, row):
        return sj.softmax1.weights(row)


class ThatSeesLowOnes(Map):
    """Softmax and a tenth for each entry that `where` shows, said to ignore low ones."""

    ignores_low = True

    def weights(self, row):
        return sj.softmax.weights(row) + 0.1


class ThatIsSigned(Map):
    sums_to_one = False

    def weights(self, row):
        return jnp.where(row.logits != -jnp.inf, jnp.tanh(row.logits), 0)


def stable(z, axis, where, largest):
    """Softmax of float32, whatever the type, less a number for each row, or one for all."""
    shown = where & (z != -jnp.inf)
    powers = jnp.where(shown, jnp.exp(jnp.where(shown, z.astype("float32"), 0) - largest), 0)
    total = powers.sum(axis, keepdims=True)
    return (powers / jnp.where(total == 0, 1, total)).astype(z.dtype)


def from_the_largest_of_its_row(z, axis, where):
    largest = z.max(axis, keepdims=True, where=where, initial=-jnp.inf).astype("float32")
    return stable(z, axis, where, jax.lax.stop_gradient(jnp.where(largest == -jnp.inf, 0, largest)))


def from_the_largest_of_the_batch(z, axis, where):
    return stable(z, axis, where, jnp.max(z, where=where, initial=-1e4).astype("float32"))


OF_ROWS = {
    "A masked entry has weight 0": lambda z, axis=-1, where=None: sj.softmax(z, axis),
    "What is behind the mask": lambda z, axis=-1, where=None: sj.softmax(z, axis, where) + 0 * z,
    "An empty row": function(lambda z, axis, where: jax.nn.softmax(jnp.where(where, z, -1e9), axis)),
    "A logit of -inf": ThatSeesLowOnes(),
    "-inf hides": ThatSeesLowOnes(),
    "A number of -10,000": ThatSeesLowOnes(),
    "Weights are finite": function(naive),
    "The gradient is finite": function(lambda z, axis, where: sj.softmax(jnp.sqrt(jnp.abs(z)), axis, where)),
    "NaN or +inf": function(lambda z, axis, where: sj.softmax(jnp.nan_to_num(z), axis, where)),
    "A row is weighed by itself": function(from_the_largest_of_the_batch),
    "Weights sum to 1": ThatClaims(),
    "No weight is negative": ThatIsSigned(),
    "A constant added": ThatClaims(),
    "A permuted row": by_place,
    "A larger logit": lambda z, axis=-1, where=None: sj.softmax(-z, axis, where),
}


@pytest.mark.parametrize("promise", [law.promise for law in LAWS])
def test_a_broken_law_of_rows_has_a_counterexample(promise):
    (wrong,) = (one for start, one in OF_ROWS.items() if promise.startswith(start))
    (law,) = (law for law in LAWS if law.promise == promise)
    said = counterexample(as_normalizer(wrong), law, "float32")
    assert said.startswith("logits [")
    assert said.count(",") < 12  # few entries are left
    assert counterexample(sj.normalizer("softmax"), law, "float32") == ""


def in_half(z, axis, where):
    weights = jnp.where(where, jnp.exp(z - z.max(axis, keepdims=True)), 0)
    return weights / jnp.cumsum(weights, axis)[..., -1:]


@jax.custom_jvp
def doubled(z):
    return z


doubled.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))


def with_a_number(z, axis=-1, where=None, *, power=2.0):
    return sj.softmax(jax.lax.stop_gradient(power) * z, axis, where)


def seen(statistic):
    """Softmax over a number of the array that the axis, the batch or the padding changes."""
    return lambda z, axis, where: sj.softmax(z, axis, where) / statistic(z)


def only_traced(z, axis, where):
    assert isinstance(z, Tracer), "be traced"
    return sj.softmax(z, axis, where)


def without_gradient(z, axis, where):
    return jax.lax.while_loop(lambda w: w.sum() > 99, lambda w: w / 2, sj.softmax(z, axis, where))


def of_short_rows(z, axis, where):
    return sj.softmax(z, axis, where) * (1 if z.shape[-1] < 1000 else jnp.nan)


def in_float16(z, axis, where):
    powers = jnp.where(where, jnp.exp((z - z.max(axis, keepdims=True)).astype("float16")), 0).astype("float32")
    return (powers / powers.sum(axis, keepdims=True)).astype(z.dtype)


def with_a_rule(times, dtype):
    """Softmax, computed in a type, whose own rule for reverse mode gives a multiple of the gradient."""

    @jax.custom_vjp
    def weigh(z):
        return jax.nn.softmax(z, -1)

    def pull(w, cotangent):
        return (times * w * (cotangent - (w * cotangent).sum(-1, keepdims=True)),)

    weigh.defvjp(lambda z: (weigh(z),) * 2, pull)

    def mine(z, axis, where):
        z_of_type = jnp.where(where & (z != -jnp.inf), z, -3e4).astype(dtype or z.dtype)
        return jnp.where(where, jnp.moveaxis(weigh(jnp.moveaxis(z_of_type, axis, -1)), -1, axis).astype(z.dtype), 0)

    return mine


def by_callback(z, axis, where):
    """Softmax of numpy in float32, which has neither a rule for `vmap` nor a forward mode."""

    def on_the_host(z):
        powers = np.exp(z - z.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    @jax.custom_vjp
    def weigh(z):
        return jax.pure_callback(on_the_host, jax.ShapeDtypeStruct(z.shape, jnp.float32), z)

    weigh.defvjp(lambda z: (weigh(z),) * 2, lambda w, g: (w * (g - (w * g).sum(-1, keepdims=True)),))
    shown = jnp.moveaxis(jnp.where(where, z, -1e4), axis, -1).astype("float32")
    return jnp.where(where, jnp.moveaxis(weigh(shown), -1, axis), 0).astype(z.dtype)


def not_of_float64(z, axis, where):
    """Raises in the one type that is asked of no normalizer."""
    assert z.dtype != jnp.float64
    return sj.softmax(z, axis, where)


KINK = float(np.random.default_rng(0).normal(size=6)[0]) + 1e-3


def bent_beside_the_row(z, axis, where):
    return jnp.maximum(z.astype("float32"), np.float32(KINK)).astype(z.dtype)


def promises_of(part, weigh):
    return {promise.name: promise for promise in catch_errors(part, as_normalizer(function(weigh)))}


@pytest.mark.parametrize(
    ("weigh", "modes"),
    [
        (from_the_largest_of_its_row, 2),
        (with_a_rule(1.0, "float32"), 1),
        (by_callback, 1),
        (bent_beside_the_row, 2),
        *full_except([(with_a_rule(1.0, None), 1), (not_of_float64, 2)]),
    ],
)
def test_a_right_gradient_is_right_in_every_precision_and_mode(weigh, modes):
    found = promises_of(check_gradient, weigh)
    assert found["The gradient is that of differences"].verdict == "holds"
    assert found["Weights move as finely as float32"].verdict == "holds"
    assert found["Forward mode has derivatives too"].verdict == ("yes" if modes == 2 else "no")
    assert Checked(found.values()).broken == []


@pytest.mark.parametrize(("dtype", "times"), [("float32", 0.99), *full_except([(None, 1.01)])])
def test_a_gradient_that_is_wrong_by_a_hundredth_is_found_in_every_precision(dtype, times):
    (broken,) = Checked(promises_of(check_gradient, with_a_rule(times, dtype)).values()).broken
    assert broken.name == "The gradient is that of differences"
    got, wanted = (float(word) for word in re.findall(r" (0\.\d+)", broken.evidence.split(" at ")[0]))
    assert broken.evidence.startswith("jacrev: dw0/dz0 is ")
    assert got == pytest.approx(times * wanted, rel=1e-4)


def test_what_jax_cannot_map_is_no_broken_promise():
    found = promises_of(check_surroundings, by_callback)
    assert found["The same under vmap"].verdict == "no"
    assert "NotImplementedError: vmap is only supported" in found["The same under vmap"].evidence
    assert Checked(found.values()).broken == []


SETTINGS = {
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_enable_x64": True,
    "jax_disable_jit": True,
    "jax_default_matmul_precision": "bfloat16",
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_transfer_guard": "disallow",
}


@pytest.fixture
def every_setting():
    """Sets all of them for the whole process, so for every thread of it, and what numpy raises too."""
    kept, errors = {name: getattr(jax.config, name) for name in SETTINGS}, np.seterr(all="raise")
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    yield
    for name, value in kept.items():
        jax.config.update(name, value)
    np.seterr(**errors)


@pytest.mark.full
def test_no_setting_of_the_process_changes_a_verdict(every_setting):
    def promoting(z, axis=-1, where=None, *, power):
        ones = jnp.ones(z.shape[axis], "float16")  # of another type and rank than float32 rows
        return (sj.softmax(z * power, axis, where).swapaxes(axis, -1) * ones).swapaxes(axis, -1).astype(z.dtype)

    power = jax.device_put(np.float64(0.5))  # which stays float64 under these settings
    assert sj.check(jax.tree_util.Partial(promoting, power=power)).broken == []


@pytest.mark.parametrize(
    ("part", "weigh", "promise", "said"),
    [
        (check_half_types, in_half, "Half types", "bfloat16: logits ["),
        (check_gradient, lambda z, *rest: exact(doubled(z), *rest), "The gradient is", "jacfwd: dw"),
        (check_gradient, with_a_number, "The gradient in its numbers", "/dpower is 0; wanted "),
        (check_surroundings, lambda z, axis, where: exact(z, -1, where), "The same along another axis", "wanted ["),
        (check_surroundings, seen(np.ndim), "The same under vmap", "wanted ["),
        (check_surroundings, seen(np.ndim), "The same under scan", "wanted ["),
        (check_surroundings, seen(np.size), "The same in blocks of queries", "wanted ["),
        (check_surroundings, seen(lambda z: max(z.shape)), "The same padded to more entries", "wanted ["),
        (check_surroundings, only_traced, "The same outside of a compiled program", "AssertionError: be traced"),
        (check_lengths, of_short_rows, "The same for rows of 1 to 65,536 entries", "at n = 1"),
        (check_gradient, without_gradient, "No error: The gradient in logits", "Reverse-mode differentiation"),
    ],
)
def test_other_promises_that_are_broken_are_said(part, weigh, promise, said):
    wrong = weigh if weigh is with_a_number else function(weigh)
    found = catch_errors(part, as_normalizer(wrong))
    (broken,) = (one for one in found if one.name.startswith(promise))
    assert broken.verdict == "BROKEN"
    assert said in broken.evidence


def test_weights_of_half_precision_are_not_compared_with_differences():
    found = promises_of(check_gradient, in_float16)
    assert found["The gradient is that of differences"].holds is None
    steps = found["Weights move as finely as float32"]
    assert (steps.verdict, steps.evidence) == ("BROKEN", "they move in steps of 3e-05")


@jax.custom_vjp
def leaking(z):
    return jnp.zeros_like(z)


leaking.defvjp(lambda z: (leaking(z), z), lambda z, g: (g + z.sum(),))


def by_the_spread(z, axis, where):
    mean = jnp.mean(z, axis, keepdims=True, where=where)
    square = jnp.mean((z - mean) ** 2, axis, keepdims=True, where=where)  # (0 - mean)² overflows behind the mask
    return sj.softmax(z / jnp.sqrt(jnp.maximum(square, 1)), axis, where)


def with_leaks(z, axis, where):
    return sj.softmax(z, axis, where) + leaking(jnp.where(jnp.isfinite(z), z, 0))


@pytest.mark.parametrize(
    ("weigh", "find", "said"),
    [
        (
            from_the_largest_of_the_batch,
            laws.alone,
            r"^logits \[0\] beside \[3e\+38\] got \[0\]; wanted \[1\], as alone$",
        ),
        (from_the_largest_of_the_batch, laws.shifted, "other rows$"),
        (with_leaks, laws.alone, r" got the gradient \[.*, as alone$"),
        (by_the_spread, laws.smooth, r"logits \[0, 3.40282e\+38\], visible \[0, 1\] got the gradient \[0, nan\]"),
    ],
)
def test_a_counterexample_holds_the_other_rows_and_hidden_entries_that_it_needs(weigh, find, said):
    (law,) = (law for law in LAWS if law.find is find)
    assert re.search(said, counterexample(as_normalizer(function(weigh)), law, "float32"))


def test_a_counterexample_says_what_differs_in_few_words():
    def said(logits, got, wanted, where: Any = True):
        logits, got, wanted = (np.array([row], float) for row in (logits, got, wanted))
        return describe(
            Finding(np.array([True]), Rows(logits, np.zeros(logits.shape, bool) | where, ["row"]), got, wanted)
        )

    assert said([0, 1], [0.3, 0.7], [0.30000001, 0.7]) == "logits [0, 1] got [0.3, 0.7]; wanted [0.30000001, 0.7]"
    hidden = said([np.nan, np.nan, 2], [0, 0, 1], [0, 0.5, 1], [False, False, True])
    assert hidden == "logits [nan, 2], visible [0, 1] got [0, 1]; wanted [0.5, 1]"
    row, weights = np.random.default_rng(0).normal(size=(2, 65))
    many = said(row, np.where(np.arange(65) == 40, np.nan, weights), weights)
    assert f" and {65 - many.split(' and ')[0].count(',') - 1} more got " in many
    assert "nan" in many
    assert len(many) < 200


def test_another_type_ends_the_check():
    (made,) = sj.check(sj.Normalizer(lambda z, axis, where: sj.softmax(z, axis, where).astype("float32")))
    assert made.evidence == "f(bfloat16 of shape (2, 3), axis -1, where) gives float32 of shape (2, 3)"
    raising = sj.Normalizer(lambda z, axis, where: z + 1 / 0)
    assert sj.check(raising).broken[0].evidence.endswith("says: ZeroDivisionError: division by zero")


@pytest.fixture
def run_command(monkeypatch, capsys):
    """Returns the status with which the command ends, and what it prints."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["check", *words])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_the_command_ends_with_status_1_for_a_broken_promise(monkeypatch, run_command):
    kept, lacking = Promise("kept", True), Promise("b", False, "row", claimed=False)
    found = {
        "Softmax": Checked([kept, lacking, Promise("c", None, "0.3")]),
        "Hardmax": Checked([Promise("broken", False, "12345 " * 33)]),
    }
    assert found["Softmax"].broken == []
    assert repr(found["Softmax"]).splitlines() == ["kept  holds", "b     no      row", "c             0.3"]
    monkeypatch.setattr(command, "check", lambda normalizer: found[type(normalizer.map).__name__])
    status, output, _ = run_command("softmax", "hardmax")
    assert status == 1
    assert "softmax keeps every promise that it makes, but has not, and does not promise: b" in " ".join(output.split())
    assert len(output.partition("broken")[2].splitlines()) == 1 + 3 + 1  # a counterexample has three lines at most
    assert output.endswith("hardmax breaks 1 promise\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [("nowhere:mine", "(ModuleNotFoundError: No module"), ("softmax softmax", "has softmax twice")],
)
def test_what_cannot_be_checked_is_said_in_one_line(words, problem, run_command):
    status, _, message = run_command(*words.split())
    assert (status, message.count("\n")) == (2, 1)
    assert problem in message
