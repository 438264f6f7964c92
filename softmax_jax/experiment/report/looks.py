"""How normalizers look before any training: their formulas, the weights of a few rows, and of one logit among many."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import palette
from softmax_jax.experiment.report.tables import new_table
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import method_of

SCORES = (0.5, -0.3, 0.1, 2.5, -0.1, 0.3, 0.0, 2.0, -0.5, 0.2)
CONCENTRATED = (0.1, 0.0, 0.2, 5.0, 0.1, -0.1, 0.0, 0.1, 0.0, 0.1)
DIFFUSE = (1.0, 0.9, 1.1, 1.0, 0.8, 1.2, 0.9, 1.1, 1.0, 0.95)
LEAD = 3.0
"""The one logit among many near 0."""
LOOK_LENGTHS = tuple(2**power for power in range(3, 17))
Named = Mapping[str, Normalizer]


def formula_table(names: Sequence[str]) -> Table:
    """Shows what each normalizer computes."""
    table = new_table("What each computes", "normalizer", "formula", "numbers", "source", names=4)
    for name in names:
        method, given = method_of(name)
        fact = method.entry
        numbers = ", ".join(f"{key} = {rounded(value)}" for key, value in (method.numbers | given).items()) or "none"
        table.add_row(name, *((fact.formula, numbers, fact.source) if fact else ("", numbers, "")))
    return table


def rounded(value: Any) -> str:
    """A number, or each of several, to three digits."""
    if isinstance(value, tuple):
        return f"({', '.join(map(rounded, value))})"
    return str(value) if value is None else format(value, ".3g")


def weights_of(named: Named, scores: Sequence[float]) -> dict[str, np.ndarray]:
    """The weights that each normalizer gives these logits."""
    return {name: np.asarray(normalizer(jnp.asarray(scores, float))) for name, normalizer in named.items()}


def weight_table(named: Named, scores: Sequence[float], title: str) -> Table:
    """The weights of one row, and their sum."""
    table = new_table(title, "logits", *(f"{score:g}" for score in scores), "sum")
    table.columns[-1].style = "bold"
    for name, weights in weights_of(named, scores).items():
        table.add_row(name, *[f"{weight:.3f}" for weight in weights], f"{weights.sum():.3f}")
    return table


def weight_chart(named: Named, rows: Mapping[str, Sequence[float]], title: str) -> charts.Chart:
    """Bars of the weights of some rows, a panel for each normalizer and row."""
    values = [
        {"row": row, "normalizer": name, "entry": index + 1, "logit": score, "weight": float(weight)}
        for row, scores in rows.items()
        for name, weights in weights_of(named, scores).items()
        for index, (score, weight) in enumerate(zip(scores, weights))
    ]
    bars = alt.Chart(alt.Data(values=values)).mark_bar()
    coloured = bars.encode(
        x=alt.X("entry:O", title="entry of the row", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("weight:Q", title="weight"),
        color=charts.colour_by("normalizer", palette(named), legend=False),
        tooltip=["normalizer:N", "entry:O", "logit:Q", "weight:Q"],
    ).properties(width=190, height=110)
    panels: dict[str, Any] = {"column": alt.Column("normalizer:N", title=None, sort=list(named))}
    if len(rows) > 1:
        panels["row"] = alt.Row("row:N", title=None, sort=list(rows))
    return coloured.facet(**panels).properties(title=charts.chart_title(title))


def sweep(named: Named, lengths: Sequence[int] = LOOK_LENGTHS, spread: float = 0.5) -> dict[str, list[float]]:
    """Returns the weight of one logit of 3 among spread·cos(0.1·i), for each length."""
    index = jnp.arange(max(lengths))
    logits = (spread * jnp.cos(0.1 * index.astype(float))).at[0].set(LEAD)
    # The rest of the longest row is masked, so that each normalizer is compiled once.
    weigh = jax.jit(lambda normalizer, n: normalizer(logits, where=index < n)[0])
    return {name: [float(weigh(normalizer, n)) for n in lengths] for name, normalizer in named.items()}


def sweep_table(swept: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> Table:
    """The sweep as numbers, at every other length and the last."""
    shown = sorted({*range(0, len(lengths), 2), len(lengths) - 1})
    table = new_table("Largest weight by length of the row", "n", *(str(lengths[index]) for index in shown))
    for name, weights in swept.items():
        table.add_row(name, *[f"{weights[index]:.4f}" for index in shown])
    return table


def sweep_chart(swept: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> charts.Chart:
    """The sweep as lines."""
    places = {"normalizer": list(swept), "n": lengths}
    frame = charts.long_frame(places, value=np.array(list(swept.values())))
    y = alt.Y("value:Q", title="largest weight", scale=alt.Scale(domain=[0, 1]))
    sharp = sum(weights[-1] >= 0.5 for weights in swept.values())
    said = f"{sharp} of {len(swept)} keep half their weight on one logit of 3 among {max(lengths):,}"
    x = charts.length_axis(lengths, "logits in the row")
    return charts.named_lines(frame, x, y, charts.chart_title(said))


def print_looks(console: Console, named: Named, swept: Mapping[str, Sequence[float]]) -> None:
    """The five tables."""
    console.print(formula_table(list(named)))
    console.print(weight_table(named, SCORES, "Ten logits through each"))
    console.print(weight_table(named, CONCENTRATED, "A concentrated row"))
    console.print(weight_table(named, DIFFUSE, "A diffuse row"))
    console.print(sweep_table(swept))


def look_charts(named: Named, swept: Mapping[str, Sequence[float]]) -> dict[str, charts.Chart]:
    """The looks as charts, by the name of their file."""
    rows = {"concentrated": CONCENTRATED, "diffuse": DIFFUSE}
    return {
        "weights": weight_chart(named, {"": SCORES}, "The weights of ten logits under each normalizer"),
        "rows": weight_chart(named, rows, "The weights of a concentrated and of a diffuse row"),
        "sweep": sweep_chart(swept),
    }
