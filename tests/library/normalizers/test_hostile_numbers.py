"""No number breaks a law of a normalizer: forward, backward and twice, in every type and form of attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention.fused import runs_fused
from softmax_jax.laws.laws import hostile, joined
from tests.library.laws.hostile_rows import DTYPES, broken_laws, changed_by_others
from tests.tiers import HEART

WIDTH = 40
"""Wide enough that a row is summed in blocks; the masks make rows of every shorter length."""

FUSED = [name for name in sj.METHODS if runs_fused(sj.normalizer(name))]
RIDERS = "softmax", "ssmax", "adaptive", "sink_softmax", "llama4"
"""One for each way to ride: no scale, one of the count, of the entropy, a sink, one of positions."""


def of_three_types(seed):
    """Rows of the half types and float32 in one array: in float32, as all of them are computed."""
    return joined(*(hostile(dtype, WIDTH, 150, seed) for dtype in ("float32", "float16", "bfloat16")))


@pytest.mark.rare
@pytest.mark.parametrize("name", sj.METHODS)
def test_no_number_breaks_a_law(name):
    assert broken_laws(name, "dense", of_three_types(0), "float32") == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in RIDERS else pytest.mark.rare) for name in FUSED]
)
def test_no_number_breaks_a_law_on_a_fused_kernel(name):
    assert broken_laws(name, "xla", of_three_types(2), "float32") == {}


@pytest.mark.rare
@pytest.mark.parametrize(
    ("name", "form", "dtype"),
    [
        *(("adaptive", "dense", dtype) for dtype in ("float64", "bfloat16")),
        *(("stieltjes", "dense", dtype) for dtype in ("float64", "float16")),
        ("softpick", "dense", "float16"),
        ("ssmax", "xla", "bfloat16"),
    ],
)
def test_no_number_of_the_other_types_breaks_a_law(name, form, dtype):
    assert broken_laws(name, form, hostile(dtype, WIDTH, 200, 3), dtype) == {}


@pytest.mark.parametrize(
    ("name", "form", "dtype"),
    [
        ("softmax", "dense", "float32"),
        *(pytest.param(name, "dense", "float32", marks=pytest.mark.full) for name in HEART[1:]),
        *(pytest.param(name, "xla", "float32", marks=pytest.mark.full) for name in RIDERS),
        *(pytest.param("adaptive", form, "bfloat16", marks=pytest.mark.full) for form in ("dense", "xla")),
    ],
)
def test_a_row_is_weighed_by_itself_in_attention(name, form, dtype):
    assert changed_by_others(name, form, dtype, WIDTH) == {}


LENGTHS = {1: 1000, 2: 1000, 3: 1000, 16: 3000, 257: 3000, 4096: 960, 65536: 40}
"""Rows of each length: 10,000 in all."""


@pytest.mark.rare
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "form"), [*((name, "dense") for name in sj.METHODS), *((name, "xla") for name in FUSED)]
)
def test_no_number_breaks_a_law_in_ten_thousand_rows(name, form, dtype, n):
    # Both orders of each row are weighed. The kernels compute in float32: numbers beyond it are +inf there.
    made_for = "float32" if (form, dtype) == ("xla", "float64") else dtype
    rows = hostile(made_for, n, LENGTHS[n] // 2, n)
    rows = rows._replace(logits=rows.logits.astype(jnp.dtype(dtype)))
    assert broken_laws(name, form, rows, "float32" if made_for != dtype else dtype) == {}


@pytest.mark.parametrize("name", HEART)
def test_a_row_of_nan_or_infinity_is_nan_above_minus_infinity_and_0_behind_the_mask(name):
    # So many rows that the maximum of each is taken in vectors, in which CPUs forget NaN.
    rows, n = 300, WIDTH
    rng, odd = np.random.default_rng(0), np.arange(rows) % 2 == 1
    logits, where = rng.normal(size=(rows, n)).astype(np.float32), rng.random((rows, n)) < 0.7
    places = np.arange(rows), rng.integers(n, size=rows)
    weigh = jax.jit(lambda logits: sj.normalizer(name)(logits, where=jnp.asarray(where)))
    clean = np.asarray(weigh(jnp.asarray(logits)))
    for kind in np.nan, np.inf:
        logits[places] = np.where(odd, kind, logits[places])
        weights = np.asarray(weigh(jnp.asarray(logits)))
        poisoned = odd & where[places]
        assert 0 < poisoned.sum() < rows
        np.testing.assert_array_equal(np.isnan(weights), poisoned[:, None] & where)
        assert not weights[~where].any()
        np.testing.assert_array_equal(weights[::2], clean[::2])


def test_infinities_agree_with_jax():
    logits = jnp.array([[jnp.inf, 0.0], [jnp.inf, jnp.inf], [jnp.inf, -jnp.inf], [jnp.nan, 0.0], [0.0, -jnp.inf]])
    np.testing.assert_array_equal(sj.softmax(logits), jax.nn.softmax(logits))


@pytest.mark.full
@pytest.mark.parametrize("form", ["dense", "streaming", "xla"])
def test_the_switch_names_the_rows(form, capfd):
    """Attention of two batch entries and three queries, of which (1, 0, 2) has a NaN and (0, 0, 1) a +inf."""
    bias = np.zeros((2, 1, 3, 32), np.float32)
    bias[1, 0, 2, 7], bias[0, 0, 1, 30], bias[0, 0, 0, 3] = np.nan, np.inf, np.nan
    query, key = jnp.ones((2, 3, 1, 4)), jnp.ones((2, 32, 1, 4))
    mask = jnp.ones(bias.shape, bool).at[0, 0, 0, 3].set(False)

    def attend():
        options = {"normalizer": "ssmax", "implementation": form}
        weighed = jax.jit(lambda: sj.dot_product_attention(query, key, key, jnp.asarray(bias), mask, **options))()
        jax.effects_barrier()
        return weighed, capfd.readouterr().err

    off, nothing = attend()
    with sj.name_bad_rows():
        on, said = attend()
    assert nothing == ""
    rows = "logits of row (0, 0, 1) hold +inf; logits of row (1, 0, 2) hold NaN; their weights are NaN\n"
    assert said == f"softmax × LogLength: {rows}"
    np.testing.assert_array_equal(on, off)
    np.testing.assert_array_equal(np.isnan(off).any((2, 3)), [[False, True, False], [False, False, True]])


def test_the_switch_adds_nothing_to_a_program_when_it_is_off():
    def weigh(logits):
        return sj.normalizer("entmax15")(logits)

    assert "callback" not in str(jax.make_jaxpr(weigh)(jnp.zeros(3)))
    with sj.name_bad_rows():
        assert "callback" in str(jax.make_jaxpr(weigh)(jnp.zeros(3)))
