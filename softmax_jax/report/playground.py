"""A chart of all normalizers side by side on one row of logits, computed by Vega while its sliders move.

The row has one best item, `gap` above the middle of the others, which lie within ± `noise` of it. Maps and scales say
themselves how Vega computes them, and which of their numbers have a slider; the tests hold the page to the package.
"""

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float

from softmax_jax.normalizers.entry import Written
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.numbers import SLIDER, Numbers
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.normalizers.scales import Scale
from softmax_jax.report import charts
from softmax_jax.report.charts import GREY, Chart, palette

GOLDEN = (math.sqrt(5) - 1) / 2
LARGEST_LOG2 = 20
DISTINCT = 2**10
"""Of more other items than these, several have the same logit, so that a browser has no more to compute."""
Number = float | int
ROW = "row"
"""Name of the chart's data, an entry for each normalizer and distinct logit."""


def playground_logits(log2_others: int, gap: Number, noise: Number) -> Float[np.ndarray, " n"]:
    r"""The logits that the playground weighs, of the best item and then of the others, a power of two of them.

    $$z_0 = \text{gap}, \qquad z_i = \text{noise} \cdot (2 \operatorname{frac}(i \varphi) - 1), \qquad
      \varphi = (\sqrt 5 - 1) / 2$$

    Multiples of the golden ratio fill the unit interval evenly for every n, so the noise looks random, is the same
    everywhere and does not change when items are added. From the 1025th on the others repeat the first 1024.

    >>> playground_logits(1, gap=4.0, noise=1.0).round(3)
    array([ 4.   ,  0.236, -0.528])
    """
    index = 1 + np.arange(2**log2_others) % DISTINCT
    return np.concatenate([[gap], noise * (2 * (index * GOLDEN % 1) - 1)])


def sliders_of(name: str) -> dict[str, tuple[float, float]]:
    """The numbers of a method that have a slider, each with the ends of it."""
    parts = (METHODS[name].map, METHODS[name].scale)
    return {
        number: ends for part in parts if isinstance(part, Map | type) for number, ends in part.marked(SLIDER).items()
    }


def started(name: str) -> dict[str, float]:
    """Where the sliders of a method start."""
    return {number: round(METHODS[name].numbers[number], 2) for number in sliders_of(name)}


def parameter(name: str, number: str) -> str:
    """What the page calls a number of a method, so that it meets no other's, nor a name of the page's own."""
    return f"{number}_of_{name}"


def written(name: str) -> tuple[Written, str] | None:
    """A registered method as expressions of Vega: its map, and β; None if one has none, or a cap comes first."""

    def on_sliders(numbers: Numbers) -> Any:
        sliders = sliders_of(name)
        leaves = [parameter(name, number) if number in sliders else value for number, value in vars(numbers).items()]
        return jax.tree.unflatten(jax.tree.structure(numbers), jax.tree.leaves(leaves))

    built = METHODS[name].build()
    map = on_sliders(built.map).written() if isinstance(built.map, Map) else None
    beta = on_sliders(built.scale).written() if isinstance(built.scale, Scale) else "1"
    return (map, beta) if map and beta else None


NORMALIZERS = {name: expressions for name in METHODS if (expressions := written(name))}
"""The methods that a page can compute."""


def of_each(expressions: Mapping[str, str]) -> str:
    """The expression of the normalizer of an entry."""
    cases = "".join(f"datum.normalizer === '{name}' ? ({expression}) : " for name, expression in expressions.items())
    return f"{cases}NaN"


def of_each_map(field: str) -> str:
    """The expression of a field of `Written` for the normalizer of an entry."""
    return of_each({name: getattr(map, field) for name, (map, _) in NORMALIZERS.items()})


def controls(log2_others: int, gap: Number, noise: Number) -> list[alt.Parameter]:
    """The sliders, with where they start."""

    def slider(name: str, label: str, value: Number, low: Number, high: Number, step: Number) -> alt.Parameter:
        return alt.param(name=name, value=value, bind=alt.binding_range(name=label, min=low, max=high, step=step))

    of_methods = [
        slider(parameter(name, number), f"{number} of {name} ", started(name)[number], *ends, 0.01)
        for name in NORMALIZERS
        for number, ends in sliders_of(name).items()
    ]
    return [
        slider("log2_others", "log₂ of the other items ", log2_others, 0, LARGEST_LOG2, 1),
        alt.param(name="others", expr="pow(2, log2_others)"),
        alt.param(name="n", expr="1 + others"),
        slider("gap", "gap of the best item ", gap, 0, 10, 0.1),
        slider("noise", "noise of the others ± ", noise, 0, 5, 0.1),
        *of_methods,
    ]


def weighed(chart: Any) -> Any:
    """The chart with the weights under every normalizer computed in it, an entry standing for so many `times` items."""
    chart = chart.transform_filter(f"datum.item <= min(others, {DISTINCT})").transform_calculate(
        times=f"datum.item === 0 ? 1 : max(1, others / {DISTINCT})",
        logit=f"datum.item === 0 ? gap : noise * (2 * ((datum.item * {GOLDEN}) % 1) - 1)",
    )
    chart = chart.transform_joinaggregate(largest="max(logit)").transform_calculate(
        excess="datum.logit - datum.largest",
        exponential="datum.times * exp(datum.excess)",
        moment="datum.exponential * datum.excess",
    )
    chart = chart.transform_joinaggregate(sum="sum(exponential)", moments="sum(moment)").transform_calculate(
        softmax_entropy="log(datum.sum) - datum.moments / datum.sum",
        normalizer=str(list(NORMALIZERS)),
    )
    chart = chart.transform_flatten(["normalizer"]).transform_calculate(
        beta=of_each({name: beta for name, (_, beta) in NORMALIZERS.items()}),
        y="datum.beta * datum.logit",
        c="datum.beta * datum.excess",
        m="max(0, datum.beta * datum.largest)",
        all_c="datum.times * datum.c",
        half_squared="datum.times * pow(datum.c / 2, 2)",
    )
    chart = thresholds(chart).transform_calculate(
        share=of_each_map("share"), mass=f"datum.times * ({of_each_map('mass')})"
    )
    return chart.transform_joinaggregate(masses="sum(mass)", groupby=["normalizer"]).transform_calculate(
        weight=f"datum.share / (({of_each_map('offset')}) + datum.masses)"
    )


def thresholds(chart: Any) -> Any:
    """Adds the thresholds of sparsemax and entmax15: of all k, that at which the k largest alone would sum to 1.

    The right k gives the largest threshold that is no higher than the k-th logit itself.
    """
    chart = chart.transform_window(
        sort=[alt.SortField("excess", order="descending")],
        groupby=["normalizer"],
        ignorePeers=True,
        rank="sum(times)",
        above="sum(all_c)",
        squares_above="sum(half_squared)",
    )
    mean = "datum.above / 2 / datum.rank"
    spare = f"(1 - datum.squares_above) / datum.rank + pow({mean}, 2)"
    chart = chart.transform_calculate(
        linear="(datum.above - 1) / datum.rank",
        spare=spare,
        squared=f"{mean} - sqrt(max(datum.spare, 0))",
        live="datum.spare >= 0 && datum.squared <= datum.c / 2 ? datum.squared : -1",
    )
    return chart.transform_joinaggregate(tau_1="max(linear)", tau_2="max(live)", groupby=["normalizer"])


def told(chart: Any) -> Any:
    """The chart with an entry for each normalizer: the weight of the best item, and the entropy."""
    chart = chart.transform_calculate(
        size="abs(datum.weight)", all_sizes="datum.times * datum.size", best="datum.item === 0 ? datum.weight : 0"
    )
    chart = chart.transform_joinaggregate(sizes="sum(all_sizes)", groupby=["normalizer"]).transform_calculate(
        part="datum.size / (datum.sizes > 0 ? datum.sizes : 1)",
        surprise="datum.part > 0 ? -datum.times * datum.part * log(datum.part) : 0",
    )
    return chart.transform_aggregate(
        best="sum(best)", entropy="sum(surprise)", beta="max(beta)", groupby=["normalizer"]
    )


def playground_chart(log2_others: int = 6, gap: Number = 4.0, noise: Number = 1.0) -> Chart:
    """A bar for each normalizer: the weight of the best item; a tick: the largest of another; as text, the entropy."""
    names = list(NORMALIZERS)
    y = alt.Y("normalizer:N", title=None, sort=names)
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("best:Q", title="weight of the best item (bar), largest of another (tick)", scale=scale)
    numbers = [alt.Tooltip(f"{field}:Q", format=".4f") for field in ("best", "entropy", "beta")]
    base = told(alt.Chart()).encode(y=y, tooltip=["normalizer:N", *numbers])
    bars = base.mark_bar(clip=True).encode(x=x, color=charts.colour_by("normalizer", palette(names), legend=False))
    others = alt.Chart().transform_calculate(other="datum.item === 0 ? 0 : abs(datum.weight)")
    ticks = others.mark_tick(color=GREY, thickness=3, clip=True).encode(y=y, x=alt.X("max(other):Q", scale=scale))
    text = "format(datum.best, '.4f') + '   ' + format(datum.entropy, '.2f') + ' nats'"
    texts = base.transform_calculate(text=text).mark_text(x="width", xOffset=8, align="left").encode(text="text:N")
    items = alt.SequenceParams.from_dict({"start": 0, "stop": DISTINCT + 1, "as": "item"})
    row = alt.layer(bars, ticks, texts, data=alt.SequenceGenerator(sequence=items, name=ROW))
    subtitle = "its logit is the gap, those of the others lie within ± noise; at the right its weight and the entropy"
    title = charts.chart_title("How much weight does the best item get under each?", subtitle)
    return (
        weighed(row)
        .add_params(*controls(log2_others, gap, noise))
        .properties(width=480, height=20 * len(names), title=title)
    )


def playground_frame(log2_others: int = 6, gap: Number = 4.0, noise: Number = 1.0) -> pl.DataFrame:
    """What the playground shows at first, as the package computes it."""
    logits = jnp.asarray(playground_logits(log2_others, gap, noise), jnp.float32)
    rows = []
    for name in NORMALIZERS:
        weights = np.asarray(METHODS[name].build(**started(name))(logits), np.float64)
        sizes = np.abs(weights)
        rows.append((name, weights[0], sizes[1:].max(), entropy(sizes / max(sizes.sum(), np.finfo(float).tiny))))
    return pl.DataFrame(rows, ["normalizer", "best", "other", "entropy"], orient="row")


def entropy(parts: Float[np.ndarray, " n"]) -> float:
    """In nats."""
    return float(-np.sum(parts * np.log(parts, where=parts > 0, out=np.zeros_like(parts))))
