"""The page on a language model: its loss under each normalizer by position, and what each of its heads does."""

import math
from collections.abc import Sequence
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
from rich.table import Table

from softmax_jax.experiment.language_models.measures import bins, entropy_slopes, paired_losses
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import GREY, palette
from softmax_jax.experiment.report.model_page import MARGIN, RESTS, SPREADS, WIDTH, heads_in_words
from softmax_jax.experiment.report.page import Figure, Section, html, write_page
from softmax_jax.experiment.report.tables import new_table

SHOWN = {
    "entropy": ("Entropy of the weights", "nats"),
    "first": ("Weight of the first token", "weight"),
    "sinks": ("Share of rows that give the first token more than 0.3", "share"),
    "spread": ("Spread δ of the logits", "logits"),
    "top": ("Largest logit", "logit"),
    "log_sum_exp": ("Log-sum-exp of the logits", "nats"),
    "of_norm": ("Norm of the first token's value, over the mean norm", "ratio"),
}
"""The measures of heads that have a picture: title and unit."""
LEGEND = 120
"""Pixels of a legend."""
TICKS = [-3, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3]
APART = 12
"""Pixels from the first to the last normalizer at one length, whose intervals would hide each other."""


def heads_map(frame: pl.DataFrame, name: str, scale: alt.Scale, panels: int = 1) -> alt.Chart:
    """Draws a number of every head as a colour, layers by heads, as wide as one of so many panels."""
    base = alt.Chart(charts.data(frame)).mark_rect(stroke=GREY, strokeWidth=0.5)  # for dark cells on a dark page
    rects = base.encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("layer:O", title="layer", sort="descending"),
        color=alt.Color(f"{name}:Q", title=None, scale=scale),
        tooltip=["layer:O", "head:O", alt.Tooltip(f"{name}:Q", format=".3g")],
    )
    return rects.properties(width=WIDTH // panels - MARGIN, height=12 * frame["layer"].n_unique())


def heads_chart(frame: pl.DataFrame, name: str, *title: str) -> charts.Chart:
    """Draws a measure of every head, layers by heads, a panel for each bin of tokens seen."""
    column = alt.Facet("below:O", title="tokens that a row sees, fewer than")
    panels = heads_map(frame, name, alt.Scale(scheme="viridis"), frame["below"].n_unique())
    return panels.facet(column).properties(title=charts.chart_title(*title))


def loss_chart(cost: pl.DataFrame, *title: str) -> charts.Chart:
    """Draws what each normalizer costs by the tokens seen, as `paired_losses` gives it, a panel for each text."""
    names = cost.filter(pl.col("normalizer") != "softmax")["normalizer"].unique(maintain_order=True).to_list()
    more, half = pl.col("more"), pl.col("half")
    places = pl.col("normalizer").replace_strict({name: place for place, name in enumerate(names)})
    drawn = cost.filter(pl.col("normalizer").is_in(names))
    frame = drawn.with_columns(n="below", low=more - half, high=more + half, place=places)
    x = charts.length_axis(sorted(set(cost["below"])), "tokens that a row sees, fewer than")
    base = alt.Chart(charts.data(frame)).encode(x=x, color=charts.colour_by("normalizer", palette(names)))
    scale = alt.Scale(type="symlog", constant=0.01)
    y = alt.Y("more:Q", title="loss more than softmax (nats)", scale=scale, axis=alt.Axis(values=TICKS, format=".2~f"))
    layers = []
    for place in range(len(names)):  # by their places, as a chart's names become those that readers know
        line, shift = base.transform_filter(alt.datum.place == place), APART * ((place + 0.5) / len(names) - 0.5)
        layers.append(line.mark_rule(strokeWidth=2, xOffset=shift).encode(y=charts.renamed(y, "low:Q"), y2="high:Q"))
        layers.append(line.mark_line(point={"xOffset": shift}, xOffset=shift).encode(y=y))
    columns = min(2, cost["text"].n_unique())
    panels = (
        alt.layer(*layers)
        .properties(width=(WIDTH - LEGEND) // columns - MARGIN, height=240)
        .facet(alt.Facet("text:N", title=None), columns=columns)
    )
    return panels.properties(
        title=charts.chart_title(*title, "bars: 95 % intervals over passages; the scale is linear near 0")
    )


def number_with_half(value: float, half: float | None) -> str:
    """Returns a number with half its interval, where there is one.

    >>> number_with_half(0.0308, 0.0559), number_with_half(0.0308, None)
    ('+0.031 ± 0.056', '+0.031')
    """
    return f"{value:+.3f}" + ("" if half is None else f" ± {half:.3f}")


def spreading_heads(heads: pl.DataFrame, edges: Sequence[int]) -> pl.DataFrame:
    """Returns each head by layer, head and bin, with its share of the entropy of equal weights: means over texts."""
    in_bin = bins(edges, max(edges))
    even = {below: float(np.log(1 + np.flatnonzero(rows)).mean()) for below, rows in zip(edges, in_bin)}
    means = heads.group_by("layer", "head", "below", maintain_order=True).agg(pl.mean("entropy", "first"))
    return means.with_columns(
        pl.format("layer {}", "layer").alias("layer"), share=pl.col("entropy") / pl.col("below").replace_strict(even)
    )


def summary_of(name: str, losses: pl.DataFrame, heads: pl.DataFrame) -> list[str]:
    """Says what the normalizers cost in the last bin, which heads spread, and which rest on the first token."""
    edges = sorted(set(losses["below"]))
    last = paired_losses(losses).filter(below=edges[-1])
    count = last["text"].n_unique()
    means = last.group_by("normalizer", maintain_order=True).agg(pl.mean("loss", "more"), pl.first("half"))
    softmax, *others = means.rows()
    halves = [half if count == 1 else None for *_, half in others]
    costs = "; ".join(f"{row[0]} costs {number_with_half(row[2], half)}" for row, half in zip(others, halves))
    texts = f"mean of {count} texts" if count > 1 else f"on {last['text'][0]}"
    loss = f"Where a row sees up to {edges[-1]:,} tokens, {name} has a loss of {softmax[1]:.3f} nats a token ({texts})"
    return [
        f"{loss}{'; ' * bool(costs)}{costs}.",
        *heads_in_words(spreading_heads(heads, edges).filter(below=edges[-1])),
    ]


def summary_table(losses: pl.DataFrame, heads: pl.DataFrame) -> Table:
    """Returns a table by the tokens that a row sees: loss, what each normalizer costs, heads that spread and rest."""
    edges = sorted(set(losses["below"]))
    table = new_table("Nats a token by the tokens seen, fewer than", "", *(f"{edge:,}" for edge in edges))
    table.columns[0].no_wrap = False  # so that numbers are whole where a terminal is narrow
    for (text, normalizer), rows in paired_losses(losses).group_by("text", "normalizer", maintain_order=True):
        if normalizer == "softmax":
            table.add_row(f"{text}: loss", *(f"{loss:.3f}" for loss in rows.sort("below")["loss"]))
        else:
            more = rows.sort("below").select("more", "half").rows()
            table.add_row(f"{text}: {normalizer} costs", *(number_with_half(*cell) for cell in more))
    shares = spreading_heads(heads, edges)
    counts = {"heads that spread": ("share", SPREADS), "heads that rest on the first token": ("first", RESTS)}
    for words, (measure, bound) in counts.items():
        in_bins = [shares.filter(below=edge)[measure] for edge in edges]
        table.add_row(words, *(f"{(values > bound).sum()} of {len(values)}" for values in in_bins))
    return table


def costs_in_words(cost: pl.DataFrame, longest: int) -> list[str]:
    """Says what each normalizer costs on each text in the longest rows, the cheapest first."""
    means = pl.mean("more").alias("mean"), pl.col("text"), pl.col("more")
    last = cost.filter(pl.col("below") == longest, pl.col("normalizer") != "softmax")
    by_normalizer = last.group_by("normalizer", maintain_order=True).agg(means).sort("mean", maintain_order=True)
    sentences = []
    for name, _, texts, costs in by_normalizer.rows():
        parts = " and ".join(f"{more:+.3f} on {text}" for text, more in zip(texts, costs))
        sentences.append(f"Where a row sees up to {longest:,} tokens, {name} costs {parts} (nats a token).")
    return sentences


def write_model_page(directory: Path, name: str, losses: pl.DataFrame, heads: pl.DataFrame) -> list[Path]:
    """Writes index.html with its pictures and data; returns the paths, the page's first."""
    edges = sorted(set(losses["below"]))
    cost = paired_losses(losses)
    sentences = costs_in_words(cost, edges[-1])
    rows: dict[str, list[str]] = {}
    for normalizer, text, _, loss, more, _, half in cost.rows():
        more_than_softmax = "" if normalizer == "softmax" else f" ({number_with_half(more, half)})"
        rows.setdefault(f"{normalizer}, {text}", []).append(f"{math.exp(loss):.2f}{more_than_softmax}")
    caption = "Perplexity (nats more than softmax, with half their 95 % interval), by tokens seen, fewer than"
    table = html.table(caption, ["normalizer, text", *(f"{edge:,}" for edge in edges)], rows, "losses")
    figure = Figure("loss", loss_chart(cost, "What each normalizer costs"), cost)
    sections = [Section("summary", "What was found", summary_of(name, losses, heads), [])]
    sections.append(Section("loss", "Loss by position", sentences, [figure, table]))
    means = heads.group_by("layer", "head", "below", maintain_order=True).agg(pl.exclude("text", "passage").mean())
    means = means.with_columns(of_norm=pl.col("first_norm") / pl.col("norm"))
    if len(edges) > 2:
        slopes = entropy_slopes(heads, edges)
        spreading = slopes.filter(pl.col("slope") > 0.5)
        count = heads.select("layer", "head").n_unique()
        sentence = (
            f"Of {len(slopes)} slopes of the entropy in log n, one for each of {count} heads on each text, "
            f"{len(spreading)} are above 0.5."
        )
        head_slopes = slopes.group_by("layer", "head", maintain_order=True).agg(
            pl.mean("slope"), below=pl.lit(edges[-1])
        )
        title = "Slope of the entropy in log n", "1: looks at all alike, 0: keeps its focus"
        chart = heads_chart(head_slopes, "slope", *title)
        sections.append(Section("slope", "Which heads disperse", [sentence], [Figure("slope", chart, head_slopes)]))
    for measure, (title, unit) in SHOWN.items():
        ends = [means.filter(below=below)[measure].mean() for below in (edges[0], edges[-1])]
        sentence = (
            f"The mean over heads is {ends[0]:.3g} in rows that see fewer than {edges[0]:,} tokens, and {ends[1]:.3g} "
            f"in the longest, of up to {edges[-1]:,}."
        )
        shown = means.select("layer", "head", "below", measure)
        figure = Figure(measure, heads_chart(shown, measure, title, unit), shown)
        sections.append(Section(measure, title, [sentence], [figure]))
    return write_page(directory, f"{name}: loss and heads", sections, "Made by softmax_jax.experiment.language_models.")
