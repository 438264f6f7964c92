"""What the key can tell apart, and what accuracy is lost to that, to dispersion and to the value: charts."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.resolution import Resolution
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts
from softmax_jax.report.colours import BY_CAUSE, GREY, by_size
from softmax_jax.tasks.max_retrieval import CLASSES

LEAST_SETS = 30
"""A bin of gaps with fewer sets of a length is not drawn."""
GAP_LENGTHS = (16, 256, 1024, 4096, 16384)
LOSSES = {
    "dispersion": "weight spread over other items",
    "key": "another item has the largest logit",
    "value": "the true item's value is misread",
}


def resolution_frame(resolution: Resolution, seeds: Sequence[int]) -> pl.DataFrame:
    """The logit of an item alone: a row per seed, class and ρ, over the whole range and near its top."""
    grids = {"whole": (resolution.rho, resolution.logits), "near": (resolution.near_rho, resolution.near_logits)}
    of_grids = [
        charts.long_frame({"range": [name], "seed": seeds, "class": range(CLASSES), "rho": rho}, logit=logits)
        for name, (rho, logits) in grids.items()
    ]
    return pl.concat(of_grids)


def resolution_chart(resolution: Resolution, seeds: Sequence[int]) -> charts.Chart:
    """Logit against ρ for each class, of the first seed: over the whole range, and near 1, where classes differ."""
    curves = resolution_frame(resolution, seeds).filter(seed=seeds[0]).rename({"logit": "value"})
    classes = sorted(set(curves["class"]))
    colours = by_size(list(map(str, classes)))
    colour = alt.Color("class:N", title="class κ", scale=alt.Scale(domain=classes, range=list(colours.values())))
    y = alt.Y("value:Q", title="logit", scale=alt.Scale(zero=False))

    def panel(name: str, question: str, form: str) -> alt.Chart:
        shown = curves.filter(range=name)
        ends = alt.Scale(domain=[shown["rho"][0], 1.0], nice=False)
        x = alt.X("rho:Q", title="ρ", axis=alt.Axis(format=form, tickCount=5), scale=ends)
        (drawn,) = charts.lines(shown, x, y, colour, point=False, width=1.5)
        return drawn.properties(width=290, height=280, title=charts.panel_title(question))

    nat, key = (of_seeds[0] for of_seeds in tell_apart(resolution))
    digits = 1 + math.ceil(-math.log10(1 - resolution.near_rho[0]))
    return alt.hconcat(
        panel("whole", "the whole range", ".1f"),
        panel("near", "near the top, where classes differ", f".{digits}f"),
    ).properties(
        title=charts.chart_title(
            "What can the key tell apart?",
            f"seed {seeds[0]}; at ρ = 1 the logit grows by {resolution.slope[0]:.0f} per unit of ρ, so one nat is "
            f"{nat:.2g} in ρ: softmax blurs closer items",
            f"the class moves the logit by ± {resolution.offset[0]:.2g}, which is {key:.2g} in ρ: closer items may "
            "change places",
        )
    )


def tell_apart(resolution: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """By seed, the difference in ρ that makes one nat, and the one that the offsets between classes stand for."""
    slope = np.abs(resolution.slope)
    return 1 / slope, resolution.offset / slope


def gap_chart(gaps: pl.DataFrame, resolution: Resolution, normalizers: Sequence[str]) -> charts.Chart:
    """Errors against the gap between the two best items: of the largest logit, and of the answers of normalizers."""
    measured = sorted(set(gaps["n"]))
    lengths = [n for n in measured if n in GAP_LENGTHS] or measured[:5]
    nat, key = (float(of_seeds.mean()) for of_seeds in tell_apart(resolution))
    drawn = gaps.filter(pl.col("n").is_in(lengths))
    panels = [gap_panel(drawn, gaps["normalizer"][0], "missed", "the largest logit is another item's", key)]
    panels += [gap_panel(drawn, name, "wrong", f"{name}: the answer is wrong", nat) for name in normalizers]
    title = charts.chart_title(
        "How close may the two best items be?",
        f"{charts.mean_of(gaps['seed'].n_unique(), ', 95 % band')}; bins of at least {LEAST_SETS} sets",
        f"upright: on the left, the gap that the class can make up for ({key:.1g} in ρ); elsewhere, the gap that makes "
        f"one nat of logit ({nat:.1g})",
    )
    return alt.hconcat(*panels).properties(title=title)


def are_enough(gaps: pl.DataFrame) -> bool:
    """Whether any bin has as many sets as one must have to be drawn."""
    sets = gaps.group_by("normalizer", "n", "gap_low").agg(pl.sum("sets"))["sets"]
    return (sets >= LEAST_SETS).any()


def gap_panel(gaps: pl.DataFrame, normalizer: str, field: str, question: str, mark: float) -> Any:
    """One kind of error under one normalizer by the gap, a line for each length, and an upright line at the mark."""
    edges = ["n", "gap_low", "gap_high"]
    errors = gaps.filter(normalizer=normalizer)
    sets = errors.group_by(edges).agg(pl.sum("sets"))
    means = over_seeds(errors, edges, field, 0.0, 100.0).join(sets, on=edges, maintain_order="left")
    means = means.filter(pl.col("sets") >= LEAST_SETS).with_columns(
        pl.col("n").cast(pl.String), gap=(pl.col("gap_low") * pl.col("gap_high")).sqrt().round_sig_figs(3)
    )
    axis = alt.Axis(values=[10.0**power for power in range(-6, 1)], format="~e", labelOverlap=True)
    x = alt.X("gap:Q", title="gap in ρ", scale=alt.Scale(type="log", domain=[1e-6, 1], nice=False), axis=axis)
    colour = charts.colour_by("n", by_size([str(n) for n in sorted(set(gaps["n"]))]), "items in the set")
    lines = charts.lines(means, x, charts.percent_axis("error (% of sets)"), colour, tooltip=["sets:Q"])
    rule = alt.Chart(alt.Data(values=[{"gap": mark}])).mark_rule(color=GREY)
    return alt.layer(*lines, rule.encode(x="gap:Q")).properties(
        width=215, height=240, title=charts.panel_title(question)
    )


def loss_split_chart(losses: pl.DataFrame) -> charts.Chart:
    """Accuracy lost to dispersion, to the key and to the value by n: a panel for each normalizer."""
    names = list(dict.fromkeys(losses["normalizer"]))
    labels = {cause: f"{cause}: {text}" for cause, text in LOSSES.items()}
    by_cause = losses.unpivot(
        list(LOSSES), index=["normalizer", "n", "seed"], variable_name="cause", value_name="share"
    )
    order = -pl.col("cause").replace_strict(list(LOSSES), range(len(LOSSES)))
    means = over_seeds(by_cause, ["normalizer", "n", "cause"], "share").with_columns(
        pl.col("cause").replace(labels), order=order, lost=pl.col("value").clip(0.0)
    )
    colours = alt.Scale(domain=list(labels.values()), range=[BY_CAUSE[cause] for cause in LOSSES])
    legend = alt.Legend(orient="bottom", direction="vertical", labelLimit=400)
    areas = (
        alt.Chart(charts.data(means))
        .mark_area(opacity=0.85)
        .encode(
            x=charts.length_axis(sorted(set(losses["n"]))),
            y=alt.Y("lost:Q", title="lost (% of sets)", stack="zero", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("cause:N", title="what costs accuracy", sort=None, scale=colours, legend=legend),
            order="order:Q",
            tooltip=["normalizer:N", "n:Q", "cause:N", alt.Tooltip("value:Q", title="lost (%)", format=".2f")],
        )
        .properties(width=200, height=150)
    )
    title = charts.chart_title(
        "Is it dispersion that costs accuracy, or the key?",
        f"{charts.mean_of(losses['seed'].n_unique())}; key: what hardmax loses too; dispersion: what the normalizer "
        "loses beyond that",
        "a normalizer that does better than hardmax loses nothing to dispersion here",
    )
    panels = areas.facet(facet=alt.Facet("normalizer:N", title=None, sort=names), columns=3)
    return panels.resolve_axis(x="independent", y="independent").properties(title=title)
