from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import softmax_jax as sj
from softmax_jax.normalizers import row as row_module
from softmax_jax.normalizers.row import Row

LOGITS, MASK = jnp.zeros((4, 16)), jnp.ones((4, 16), bool)


def operations(jaxpr):
    """Counts the equations of a jaxpr and of all within it, by name."""
    counts = Counter(equation.primitive.name for equation in jaxpr.eqns)
    for equation in jaxpr.eqns:
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                counts += operations(inner)
    return counts


@pytest.mark.parametrize(("name", "most"), [("softmax", 2), ("ssmax", 8)])
def test_a_masked_call_chooses_no_more_often_than_it_must(name, most):
    """A masked SSMax chooses by the mask, the low logits, the pivot, three bounds, what is not finite, and the mask."""
    weigh = sj.normalizer(name)
    jaxpr = jax.make_jaxpr(lambda logits, mask: weigh(logits, -1, mask))(LOGITS, MASK)
    assert operations(jaxpr.jaxpr)["select_n"] <= most


def test_a_mask_is_checked_once(monkeypatch):
    calls, read_mask = [], row_module.read_mask
    monkeypatch.setattr(row_module, "read_mask", lambda *args: calls.append(1) or read_mask(*args))
    sj.normalizer("ssmax")(LOGITS, where=MASK)
    assert len(calls) == 1


def test_a_row_says_what_hides():
    logits = jnp.array([0.0, -9e3, 5.0, -jnp.inf])
    row = Row.of(logits, -1, jnp.array([True, True, False, True]))
    assert row.logits.tolist() == [0.0, -jnp.inf, -jnp.inf, -jnp.inf]
    assert row.where is not None
    assert row.where.tolist() == [True, False, False, False]
    assert Row.of(logits, -1, None, low_hides=False).logits.tolist() == logits.tolist()
