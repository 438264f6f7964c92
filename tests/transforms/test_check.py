"""For each promise a normalizer that breaks it, and is found out."""

import jax
import jax.numpy as jnp
import pytest
from jax.core import Tracer

import softmax_jax as sj
from softmax_jax.commands import check as command
from softmax_jax.normalizers.laws import LAWS
from softmax_jax.normalizers.registry import as_normalizer
from softmax_jax.transforms.check import (
    Checked,
    Promise,
    counterexample,
    of_gradient,
    of_halves,
    of_lengths,
    of_shape,
    of_surroundings,
    unless_raised,
)


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


class ThatIsSigned(Map):
    sums_to_one = False

    def weights(self, row):
        return jnp.where(row.logits != -jnp.inf, jnp.tanh(row.logits), 0)


class ThatSeesLowOnes(Map):
    """Softmax and a tenth for each entry that `where` shows, said to ignore low ones."""

    ignores_low = True

    def weights(self, row):
        return sj.softmax.weights(row) + 0.1


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


def of_rank(z, axis, where):
    return sj.softmax(z, axis, where) / z.ndim


def of_width(z, axis, where):
    return sj.softmax(z, axis, where) / z.shape[axis]


def of_the_last_axis(z, axis, where):
    return sj.softmax(z, -1, where)


def of_all_rows(z, axis, where):
    return sj.softmax(z, axis, where) / z.size


def only_traced(z, axis, where):
    assert isinstance(z, Tracer), "be traced"
    return sj.softmax(z, axis, where)


def without_gradient(z, axis, where):
    return jax.lax.while_loop(lambda w: w.sum() > 99, lambda w: w / 2, sj.softmax(z, axis, where))


def of_short_rows(z, axis, where):
    return sj.softmax(z, axis, where) * (1 if z.shape[-1] < 1000 else jnp.nan)


@pytest.mark.parametrize(
    ("part", "weigh", "promise", "said"),
    [
        (of_halves, in_half, "Half types", "bfloat16: logits ["),
        (of_gradient, lambda z, *rest: exact(doubled(z), *rest), "The gradient is", "jacfwd: dw"),
        (of_gradient, with_a_number, "The gradient in its numbers", "/dpower is 0; wanted "),
        (of_surroundings, of_the_last_axis, "The same along another axis", "wanted ["),
        (of_surroundings, of_rank, "The same under vmap", "wanted ["),
        (of_surroundings, of_rank, "The same under scan", "wanted ["),
        (of_surroundings, of_all_rows, "The same in blocks of queries", "wanted ["),
        (of_surroundings, of_width, "The same padded to more entries", "wanted ["),
        (of_surroundings, only_traced, "The same outside of a compiled program", "AssertionError: be traced"),
        (of_lengths, of_short_rows, "The same for rows of 1 to 65,536 entries", "at n = 1"),
        (of_gradient, without_gradient, "No error: The gradient in logits", "Reverse-mode differentiation"),
    ],
)
def test_other_promises_that_are_broken_are_said(part, weigh, promise, said):
    wrong = weigh if weigh is with_a_number else function(weigh)
    found = unless_raised(part, as_normalizer(wrong))
    (broken,) = (one for one in found if one.name.startswith(promise))
    assert broken.verdict == "BROKEN"
    assert said in broken.said


def test_another_type_ends_the_check():
    wrong = sj.Normalizer(lambda z, axis, where: sj.softmax(z, axis, where).astype("float32"))
    (made,) = sj.check(wrong)
    assert made.said == "f(bfloat16 of shape (2, 3), axis -1, where) gives float32 of shape (2, 3)"
    raising = sj.Normalizer(lambda z, axis, where: z + 1 / 0)
    assert sj.check(raising).broken[0].said.endswith("says: ZeroDivisionError: division by zero")
    assert of_shape(sj.normalizer("softmax")).holds


def test_what_is_not_claimed_is_no_promise():
    found = Checked([Promise("a", False, "row", claimed=False), Promise("b", True), Promise("c", None, "0.3")])
    assert [one.verdict for one in found] == ["no", "holds", ""]
    assert found.broken == []
    assert repr(found).splitlines() == ["a  no      row", "b  holds", "c          0.3"]


def test_the_command_ends_with_status_1_for_a_broken_promise(monkeypatch, capsys):
    found = {"softmax": Checked([Promise("kept", True)]), "hardmax": Checked([Promise("kept", False, "logits [0]")])}
    monkeypatch.setattr(command, "check", lambda one: found[repr(type(one.map).__name__).strip("'").lower()])
    monkeypatch.setattr("sys.argv", ["check", "softmax", "hardmax"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "softmax keeps every promise that it makes" in said
    assert "hardmax breaks 1 promise" in said
    assert "logits [0]" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere:mine"], "the module nowhere cannot be imported (ModuleNotFoundError: No module named 'nowhere')"),
        (["sofmax"], "did you mean 'softmax'?"),
        (["math:sqrt"], "math:sqrt is the function sqrt; it must be a map, a Normalizer, the name of one"),
        (["softmax", "softmax"], "has softmax twice"),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(words, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["check", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    answer = capsys.readouterr().err
    assert answer.count("\n") == 1
    assert said in answer
