"""A chart of normalizers side by side on one row of logits, which the reader changes with sliders.

The row has one best item, `gap` above the middle of the others, which lie within ± `noise` of it. JAX weighs it under
every normalizer at every position of the sliders; the page looks the numbers of a position up.
"""

import itertools
import math
from collections.abc import Mapping

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float

from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import GREY, Chart, palette
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.normalizer import Normalizer

GOLDEN = (math.sqrt(5) - 1) / 2
SLIDERS = {
    "log2_others": ("log₂ of the other items ", range(0, 13, 2), 6),
    "gap": ("gap of the best item ", range(11), 4),
    "noise": ("noise of the others ± ", range(6), 1),
}
"""Label, positions and start of each slider."""
POSITIONS = list(itertools.product(*(positions for _, positions, _ in SLIDERS.values())))
START = POSITIONS.index(tuple(start for _, _, start in SLIDERS.values()))
NUMBERS = ("best", "other", "entropy")
LISTS = tuple(f"{number}_by_position" for number in NUMBERS)


def playground_logits(log2_others: int, gap: float | int, noise: float | int) -> Float[np.ndarray, " n"]:
    r"""Returns the logits of the best item and then of the others, a power of two of them.

    $$z_0 = \text{gap}, \qquad z_i = \text{noise} \cdot (2 \operatorname{frac}(i \varphi) - 1), \qquad
      \varphi = (\sqrt 5 - 1) / 2$$

    Multiples of the golden ratio fill the unit interval evenly for every n, so the noise looks random, is the same
    everywhere and does not change when items are added.

    >>> playground_logits(1, gap=4.0, noise=1.0).round(3)
    array([ 4.   ,  0.236, -0.528])
    """
    index = 1 + np.arange(2**log2_others)
    return np.concatenate([[gap], noise * (2 * (index * GOLDEN % 1) - 1)])


@jax.jit
def numbers_of(
    normalizer: Normalizer, logits: Float[Array, "positions n"], where: Bool[Array, "positions n"]
) -> Float[Array, "numbers positions"]:
    """Returns the weight of the best item, the largest of another, and the entropy of all, in nats."""
    weights = normalizer(logits, where=where)
    return jnp.stack([weights[:, 0], jnp.max(jnp.abs(weights[:, 1:]), -1), weight_entropy(weights)])


def playground_numbers(normalizers: Mapping[str, Normalizer]) -> dict[str, Float[np.ndarray, "numbers positions"]]:
    """Weighs the row at every position of the sliders under each normalizer."""
    rows = [playground_logits(*position) for position in POSITIONS]
    longest = max(map(len, rows))
    logits = np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
    where = np.arange(longest) < np.array([[len(row)] for row in rows])
    arguments = jnp.asarray(logits, jnp.float32), jnp.asarray(where)
    return {name: np.asarray(numbers_of(normalizer, *arguments)) for name, normalizer in normalizers.items()}


def playground_chart(numbers: Mapping[str, Float[np.ndarray, "numbers positions"]]) -> Chart:
    """Draws a bar for the weight of the best item, a tick for the largest of another, and the entropy as text."""
    names = list(numbers)
    # One row for each normalizer, with the numbers of all positions as lists: a row for each position is ten times as
    # much text. A number has another name than its list, which a moved slider reads again.
    rows = [dict(zip(LISTS, np.round(arrays, 4).astype(float).tolist())) for arrays in numbers.values()]
    values = [{"normalizer": name, **row} for name, row in zip(names, rows, strict=True)]
    position = "0"
    for slider, (_, positions, _) in SLIDERS.items():
        position = f"({position}) * {len(positions)} + {slider} / {positions.step}"
    looked_up = {number: f"datum.{by_position}[{position}]" for number, by_position in zip(NUMBERS, LISTS)}
    base = alt.Chart(alt.Data(values=values)).transform_calculate(
        **looked_up, text="format(datum.best, '.4f') + '   ' + format(datum.entropy, '.2f') + ' nats'"
    )
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("best:Q", title="weight of the best item (bar), largest of another (tick)", scale=scale)
    tooltip = ["normalizer:N", *(alt.Tooltip(f"{number}:Q", format=".4f") for number in NUMBERS)]
    base = base.encode(y=alt.Y("normalizer:N", title=None, sort=names), tooltip=tooltip)
    bars = base.mark_bar(clip=True).encode(x=x, color=charts.colour_by("normalizer", palette(names), legend=False))
    ticks = base.mark_tick(color=GREY, thickness=3, clip=True).encode(x=alt.X("other:Q", scale=scale))
    texts = base.mark_text(x="width", xOffset=8, align="left").encode(text="text:N")
    sliders = [
        alt.param(
            name=slider,
            value=start,
            bind=alt.binding_range(name=label, min=positions[0], max=positions[-1], step=positions.step),
        )
        for slider, (label, positions, start) in SLIDERS.items()
    ]
    subtitle = "its logit is the gap, those of the others lie within ± noise; at the right its weight and the entropy"
    title = charts.chart_title("The weight of the best item under each normalizer", subtitle)
    return alt.layer(bars, ticks, texts).add_params(*sliders).properties(width=480, height=20 * len(names), title=title)


def playground_frame(numbers: Mapping[str, Float[np.ndarray, "numbers positions"]]) -> pl.DataFrame:
    """Returns what the playground shows at first."""
    rows = [(name, *arrays[:, START].tolist()) for name, arrays in numbers.items()]
    return pl.DataFrame(rows, ["normalizer", *NUMBERS], orient="row")
