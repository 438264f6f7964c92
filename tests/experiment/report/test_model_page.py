import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import softmax_jax as sj
from softmax_jax.experiment.report import model_page
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.probe import Probed

from .charts import texts_of

LENGTHS = (4, 8)
SUFFIXES = ("csv", "png", "svg")


def attend(x):
    """Two heads, the second uniform; a query sees the items up to its own."""
    with jax.named_scope("layer_0"):
        logits = jnp.stack([x @ x.T, jnp.zeros((len(x), len(x)))])[None]
        seen = jnp.tril(jnp.ones((len(x), len(x)), bool))[None, None]
        return jax.nn.softmax(jnp.where(seen, logits, -1e30)) @ x[None, None]


def three_layers(x):
    """One head, three times in a loop."""
    return jax.lax.scan(lambda x, _: (jax.nn.softmax(x @ x.T) @ x, None), x, None, length=3)


def found_in(fun):
    return {n: sj.probe(fun)(jax.random.normal(jax.random.key(n), (n, 3)))[1] for n in LENGTHS}


@pytest.mark.parametrize("rows", [{}, {8: Probed([])}])
@pytest.mark.parametrize(
    "use", [model_page.head_means, model_page.critical_betas, lambda rows: model_page.model_page(rows, "page", "mine")]
)
def test_no_rows_are_refused_with_the_rows_to_give(rows, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=r"no rows of attention: give \{n: rows\} .* as softmax_jax\.probe gives them"):
        use(rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_means_are_those_of_the_rows_of_each_head():
    found = found_in(attend)
    frame = model_page.head_means(found)
    assert frame.select("n", "layer", "head").rows() == [(n, "layer_0", head) for n in LENGTHS for head in (0, 1)]
    for n in LENGTHS:
        (rows,) = found[n]
        for head, row in enumerate(frame.filter(n=n).to_dicts()):
            assert row["entropy"] == pytest.approx(float(rows.entropy[0, head].mean()), rel=1e-5)
            assert row["first"] == pytest.approx(float(rows.first[0, head].mean()), rel=1e-5)
            assert row["uniform"] == pytest.approx(np.log(np.arange(1, n + 1)).mean(), rel=1e-5)
        assert frame.row(-1, named=True)["entropy"] == pytest.approx(frame["uniform"][-1], rel=1e-5)  # the second head


@pytest.mark.full
def test_rows_that_were_not_weighed_are_left_out():
    frame = model_page.head_means(found_in(lambda x: jax.lax.cond(x[0, 0] > 1e9, attend, lambda x: attend(2 * x), x)))
    assert len(frame) == len(LENGTHS) * 2


@pytest.mark.full
def test_critical_betas_are_the_median_of_the_rows_that_see_about_as_much():
    _, found = sj.probe(attend, critical=True)(jax.random.normal(jax.random.key(0), (8, 3)))
    frame = model_page.critical_betas({8: found})
    assert frame.select("layer", "n", "rows").rows() == [("layer_0", 2, 4), ("layer_0", 4, 8), ("layer_0", 8, 2)]
    rows = np.asarray(found[0].critical)[0, :, 3:7]  # of two heads, the second with ties alone
    of_four = frame.row(by_predicate=pl.col("n") == 4, named=True)
    assert np.isinf(rows[1]).all()
    assert (of_four["low"], of_four["value"]) == (np.sort(rows[0])[2], np.inf)
    assert of_four["sharp"] == 100 * (rows < 1).mean()
    assert len(model_page.critical_betas(found_in(attend))) == 0


@pytest.mark.full
def test_the_page_has_its_charts_and_data_beside_it_and_a_layer_for_each_turn_of_a_loop(tmp_path):
    probe = sj.probe(three_layers, critical=True)
    found = {n: probe(jax.random.normal(jax.random.key(n), (n, 3)))[1] for n in LENGTHS}
    page, *others = model_page.model_page(found, tmp_path, "How does it attend?")
    assert all(words in page.read_text() for words in ("How does it attend?", "How sharp the rows are"))
    names = {f"{name}.{suffix}" for name in ("entropy", "evenness", "first", "critical") for suffix in SUFFIXES}
    assert {path.name for path in others} == names
    assert {"critical β", "visible entries, at least"} <= texts_of((tmp_path / "critical.svg").read_text())
    written = pl.read_csv(tmp_path / "entropy.csv")
    assert written.rows() == model_page.head_means(found).rows()
    turns = [layer.rsplit(", ")[-1] for layer in written["layer"].unique(maintain_order=True)]
    assert turns == ["turn 0", "turn 1", "turn 2"]
