"""A chart that weighs a row of logits while its sliders move, computed by Vega wherever it is shown.

The row has one best item, `gap` above the middle of the others, which lie within ± `noise` of it. Maps and scales say
themselves how Vega computes them, and which of their numbers have a slider; the tests hold the page to the package.
"""

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import jax
import numpy as np
from jaxtyping import Float

from softmax_jax.normalizers.entry import Written
from softmax_jax.normalizers.map import Map
from softmax_jax.normalizers.numbers import SLIDER, Numbers
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.normalizers.scales import Scale
from softmax_jax.report.charts import Chart

GOLDEN = (math.sqrt(5) - 1) / 2
LARGEST_LOG2_N = 10
Number = float | int
ROW = "row"
"""Name of the chart's data, an entry for each item."""
COLOURS = {"the best item": "#e45756", "another item": "#4c78a8"}


def playground_logits(n: int, gap: Number, noise: Number) -> Float[np.ndarray, " n"]:
    r"""The logits that the playground weighs; the best item comes first.

    $$z_0 = \text{gap}, \qquad z_i = \text{noise} \cdot (2 \operatorname{frac}(i \varphi) - 1), \qquad
      \varphi = (\sqrt 5 - 1) / 2$$

    Multiples of the golden ratio fill the unit interval evenly for every n, so the noise looks random, is the same
    everywhere and does not change when items are added.

    >>> playground_logits(3, gap=4.0, noise=1.0).round(3)
    array([ 4.   ,  0.236, -0.528])
    """
    logits = noise * (2 * (np.arange(n) * GOLDEN % 1) - 1)
    logits[0] = gap
    return logits


def sliders_of(name: str) -> dict[str, tuple[float, float]]:
    """The numbers of a method that have a slider, each with the ends of it."""
    parts = (METHODS[name].map, METHODS[name].scale)
    return {
        number: ends for part in parts if isinstance(part, Map | type) for number, ends in part.marked(SLIDER).items()
    }


def parameter(name: str, number: str) -> str:
    """What the page calls a number of a method, so that it meets no other's, nor a name of the page's own."""
    return f"{number}_of_{name}"


def written(name: str) -> tuple[Written, str] | None:
    """A registered method as expressions of Vega: its map, and β; None if one of them has none."""

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


def chosen(expressions: Mapping[str, str]) -> str:
    """The expression of the normalizer that the page has chosen."""
    cases = "".join(f"normalizer === '{name}' ? ({expression}) : " for name, expression in expressions.items())
    return f"{cases}NaN"


def chosen_of_map(field: str) -> str:
    """The expression of a field of `Written` for the chosen normalizer."""
    return chosen({name: getattr(map, field) for name, (map, _) in NORMALIZERS.items()})


def controls(normalizer: str, n: int, gap: Number, noise: Number) -> list[alt.Parameter]:
    """The choice of normalizer and the sliders, with where they start."""

    def slider(name: str, label: str, value: Number, low: Number, high: Number, step: Number) -> alt.Parameter:
        return alt.param(name=name, value=value, bind=alt.binding_range(name=label, min=low, max=high, step=step))

    choice = alt.binding_select(options=list(NORMALIZERS), name="normalizer ")
    of_methods = [
        slider(parameter(name, number), f"{number} of {name} ", round(METHODS[name].numbers[number], 2), *ends, 0.01)
        for name in NORMALIZERS
        for number, ends in sliders_of(name).items()
    ]
    return [
        alt.param(name="normalizer", value=normalizer, bind=choice),
        slider("log2_n", "log₂ of the items n ", round(math.log2(n), 2), 1, LARGEST_LOG2_N, 0.25),
        alt.param(name="n", expr="round(pow(2, log2_n))"),
        slider("gap", "gap of the best item ", gap, 0, 10, 0.1),
        slider("noise", "noise of the others ± ", noise, 0, 5, 0.1),
        *of_methods,
    ]


def weighed(chart: Any) -> Any:
    """The chart with the weights of the row computed in it: `weight`, `rank`, `kind` and what they need."""
    chart = chart.transform_filter("datum.item < n").transform_calculate(
        logit=f"datum.item === 0 ? gap : noise * (2 * ((datum.item * {GOLDEN}) % 1) - 1)",
        kind="datum.item === 0 ? '{}' : '{}'".format(*COLOURS),
    )
    chart = chart.transform_joinaggregate(largest="max(logit)").transform_calculate(
        excess="datum.logit - datum.largest",
        exponential="exp(datum.excess)",
        moment="datum.exponential * datum.excess",
    )
    chart = chart.transform_joinaggregate(sum="sum(exponential)", moments="sum(moment)").transform_calculate(
        softmax_entropy="log(datum.sum) - datum.moments / datum.sum",
        beta=chosen({name: beta for name, (_, beta) in NORMALIZERS.items()}),
        y="datum.beta * datum.logit",
        c="datum.beta * datum.excess",
        m="max(0, datum.beta * datum.largest)",
        half_squared="pow(datum.c / 2, 2)",
    )
    chart = thresholds(chart).transform_calculate(share=chosen_of_map("share"), mass=chosen_of_map("mass"))
    return chart.transform_joinaggregate(masses="sum(mass)").transform_calculate(
        weight=f"datum.share / (({chosen_of_map('offset')}) + datum.masses)", size="abs(datum.weight)"
    )


def thresholds(chart: Any) -> Any:
    """Adds the thresholds of sparsemax and entmax15: of all k, that at which the k largest alone would sum to 1.

    The right k gives the largest threshold that is no higher than the k-th logit itself.
    """
    chart = chart.transform_window(
        sort=[alt.SortField("excess", order="descending")],
        ignorePeers=True,
        rank="row_number()",
        above="sum(c)",
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
    return chart.transform_joinaggregate(tau_1="max(linear)", tau_2="max(live)")


def playground_chart(normalizer: str = "softmax", n: int = 64, gap: Number = 4.0, noise: Number = 1.0) -> Chart:
    """Weights by rank under the chosen normalizer, with their entropy and the weights that matter as numbers."""
    x = alt.X("rank:Q", title="item, by the rank of its logit", axis=alt.Axis(values=[2**k for k in range(11)]))
    y = alt.Y("weight:Q", title="weight (square-root scale)")
    lowest = alt.ExprRef("normalizer === 'signed_l1' ? -1 : 0")
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
        legend=alt.Legend(orient="top", symbolOpacity=1),
    )
    layers = []
    for kind in reversed(COLOURS):
        some = alt.Chart().transform_filter(alt.datum.kind == kind)
        scaled_x = x.scale(type="log", base=2, domainMin=0.9, domainMax=alt.ExprRef("1.05 * n"), nice=False)
        scaled_y = y.scale(type="sqrt", domainMin=lowest, domainMax=1)
        layers.append(some.mark_rule(opacity=0.5).encode(x=scaled_x, y=scaled_y, y2=alt.datum(0), color=colour))
        layers.append(some.mark_point(filled=True, opacity=1, size=36).encode(x=scaled_x, y=scaled_y, color=colour))
    items = alt.SequenceParams.from_dict({"start": 0, "stop": 2**LARGEST_LOG2_N, "as": "item"})
    row = alt.layer(*layers, *numbers(), data=alt.SequenceGenerator(sequence=items, name=ROW))
    return (
        weighed(row)
        .add_params(*controls(normalizer, n, gap, noise))
        .properties(
            width=640,
            height=320,
            title=alt.TitleParams(
                "How much weight does the best item get?",
                subtitle=["its logit is the gap, those of the others lie within ± noise"],
                anchor="start",
            ),
        )
    )


def numbers() -> list[alt.Chart]:
    """What the weights come to, as text in the corner that sorted weights leave free."""
    chart = alt.Chart().transform_joinaggregate(sizes="sum(size)")
    chart = chart.transform_calculate(
        part="datum.size / (datum.sizes > 0 ? datum.sizes : 1)",
        surprise="datum.part > 0 ? -datum.part * log(datum.part) : 0",
        best="datum.item === 0 ? datum.weight : 0",
    )
    chart = chart.transform_aggregate(
        items="count()", entropy="sum(surprise)", largest="max(size)", best="sum(best)", beta="max(beta)"
    )
    texts = (
        "format(datum.items, ',') + ' items, β = ' + format(datum.beta, '.3f')",
        "'entropy ' + format(datum.entropy, '.3f') + ' nats'",
        "'largest weight ' + format(datum.largest, '.4f')",
        "'weight of the best item ' + format(datum.best, '.4f')",
    )
    return [
        chart.transform_calculate(text=text)
        .mark_text(align="right", x=alt.ExprRef("width - 6"), y=12 + 18 * line, fontSize=13, fontWeight="bold")
        .encode(text="text:N")
        for line, text in enumerate(texts)
    ]
