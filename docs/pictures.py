"""Draws the pictures of the documentation from their data: python -m docs.pictures [NAME ...].

The data are the CSV files of docs/data, which other commands wrote, the fits beside the checkpoints, and the
normalizers themselves. A picture holds the fingerprint of its chart, by which the tests find one that is out of date.
"""

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import jax
import numpy as np
import polars as pl

from docs.claims import board_order
from examples import needle
from softmax_jax import theory
from softmax_jax.experiment.language_models.measures import paired_losses
from softmax_jax.experiment.language_models.page import loss_chart
from softmax_jax.experiment.measures.runs import FITS
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts, model_page, shootout, temperature
from softmax_jax.experiment.report.board import board_chart
from softmax_jax.experiment.report.chart_files import specification, svg
from softmax_jax.experiment.report.charts import GREY, palette
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.files import write_whole
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.temperature import ALL_LENGTHS, TRAIN_LENGTHS, TemperatureFit
from studies import (
    ablation,
    extremes,
    front_tables,
    normalised_keys,
    polynomial,
    precision,
)
from studies.clrs_text import page as clrs_text
from studies.dilution_tables import ALL, learned, points, points_chart

DOCS = Path(__file__).parent
SWAPS = ("softmax", "adaptive", "ssmax", "adaptive_refit_train", "hardmax")
"""Of the picture that says what helps; none of them saw a longer set than those of training."""
BAND = "mean of 10 seeds, 95 % band"
RUNS = {"paper_float32": "paper's recipe", "frontier": "frontier", "near_ties": "near ties"}
LABELS = {ALL_LENGTHS: "refit to all lengths", TRAIN_LENGTHS: "refit to ≤ 16 items"}
RECIPES = ("base", "λ = 0.001", "constant 0.001", "2,500 steps", "128 sets", "2 items", "nearest of 64")
RECIPES += ("frontier", "near_ties")
"""Nine of the ablation, each the one of its group that changes most of what is said of it; losses.csv has all."""
LENGTHS = shootout.LOOK_LENGTHS[::2]
WIDTH = 300
"""Of a panel, so that a picture with names at its right can be read on a telephone."""
DIGITS = 4


def table(name: str) -> pl.DataFrame:
    """One of the CSV files."""
    return pl.read_csv(DOCS / "data" / f"{name}.csv")


def largest_weight() -> Any:
    """Dispersion, in theory and in a trained model."""
    named = {name: normalizer(name) for name in ("softmax", "adaptive", "ssmax", "entmax15", "hardmax")}
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        swept = shootout.sweep(named, spread=0.0)
    places = {"normalizer": list(swept), "n": shootout.LOOK_LENGTHS}
    frame = charts.long_frame(places, value=np.array(list(swept.values())))
    forced = math.ceil(theory.length_forced_below(0.5, spread=shootout.LEAD))
    x = charts.length_axis(shootout.LOOK_LENGTHS, "logits in the row")
    mark = alt.Chart(alt.Data(values=[{"n": forced, "text": f"n = {forced}"}])).encode(x=x)
    text = mark.mark_text(align="left", dx=6, baseline="top").encode(y=alt.value(38), text="text:N")
    upper = weight_panel(
        frame, x, f"One logit leads all others by {shootout.LEAD:g}", [mark.mark_rule(color=GREY), text]
    )
    measured = table("paper_float32").filter(pl.col("normalizer").is_in(SWAPS))
    trained = over_seeds(measured, ["normalizer", "n"], "max_weight", 0.0, 1.0)
    lower = weight_panel(
        trained, charts.length_axis(sorted(set(measured["n"]))), f"A trained head on max retrieval; {BAND}"
    )
    title = charts.chart_title(f"Softmax loses half its weight by {forced} items")
    return alt.vconcat(upper, lower).resolve_scale(color="independent").properties(title=title)


def weight_panel(frame: pl.DataFrame, x: alt.X, title: str, marks: Sequence[alt.Chart] = ()) -> Any:
    """Largest weights as lines."""
    y = alt.Y("value:Q", title="largest weight", scale=alt.Scale(domain=[0, 1]))
    options: dict[str, Any] = {"text": "label", "under": marks, "width": WIDTH, "height": 180}
    return charts.named_lines(labelled(frame), x, y, charts.panel_title(title), **options)


def labelled(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the frame with a `label` for each normalizer, short for refits, so that it fits a telephone."""
    return frame.with_columns(label=pl.col("normalizer").replace(LABELS))


def reached(run: str) -> pl.DataFrame:
    """Returns what a run answers under softmax and the adaptive temperature, which were measured at all lengths."""
    return table(f"reach/{run}").filter(pl.col("normalizer").is_in(["softmax", "adaptive"]))


def reach() -> charts.Chart:
    """Three recipes, as far as 65,536 items: a line for each run and normalizer."""
    measured = pl.concat(
        over_seeds(reached(run), ["normalizer", "n"], "accuracy", 0.0, 100.0).with_columns(
            line=pl.lit(f"{called}: ") + pl.col("normalizer")
        )
        for run, called in RUNS.items()
    )
    by_normalizer = palette(measured["normalizer"])
    colours = {line: by_normalizer[name] for line, name in measured.select("line", "normalizer").rows()}
    longest = max(measured["n"])
    at_end = measured.filter(normalizer=BASELINE, n=longest)["value"]
    x, y = charts.length_axis(sorted(set(measured["n"]))), charts.percent_axis("accuracy (% of sets)")
    title = charts.chart_title(
        f"The recipe decides: {min(at_end):.0f} to {max(at_end):.0f} % under softmax at {longest:,} items",
        f"trained on at most 16 items; {BAND}",
    )
    return charts.named_lines(measured, x, y, title, field="line", colours=colours, width=WIDTH, height=300)


def refits() -> charts.Chart:
    """The temperature fits of three shipped runs, and the published polynomial, all by the rule β ≥ 1 of the method."""
    runs = {"paper": "paper: products rounded", "frontier": "frontier", "paper_float32": "paper in float32"}
    highest, height = 6.0, 130
    entropies, grid = alt.Scale(domain=[0, highest], nice=False), np.linspace(0, highest, 121)
    x = alt.X("entropy:Q", title="entropy (nats)", scale=entropies)
    scale = alt.Scale(type="log", base=2, domain=[0.9, 16])
    y = alt.Y("value:Q", title="β (log scale)", scale=scale, axis=alt.Axis(values=[1, 2, 4, 8, 16]))
    colour = charts.colour_by("normalizer", palette([temperature.PUBLISHED, ALL_LENGTHS, TRAIN_LENGTHS]), legend=False)
    panels, best = [], []
    for run, called in runs.items():
        fits = {name: TemperatureFit.load(SHIPPED / run / FITS[name]) for name in (ALL_LENGTHS, TRAIN_LENGTHS)}
        curves = temperature.curves(fits)
        best.append(float(curves[ALL_LENGTHS](np.array([2.0]))[0]))
        drawn = [pl.DataFrame({"normalizer": name, "entropy": grid, "value": f(grid)}) for name, f in curves.items()]
        bands = [pl.DataFrame({"normalizer": name, **fit.band}) for name, fit in fits.items() if fit.band]
        layers = [charts.band(band.with_columns(pl.col("low", "high").clip(1.0)), x, y, colour) for band in bands]
        for curve, width in zip(drawn, (6.0, 3.5, 1.5)):  # so that none hides another
            layers += charts.lines(curve, x, y, colour, point=False, width=width)
        layers += charts.ends(labelled(pl.concat(drawn)), x, y, colour, height, "label")
        panels.append(alt.layer(*layers).properties(width=WIDTH, height=height, title=charts.panel_title(called)))
    title = charts.chart_title(
        f"At 2 nats the best β is {min(best):.1f} for one model and {max(best):.1f} for another",
        "adaptive temperature: the published polynomial;",
        "all by the method's rule β ≥ 1; 95 % bands over seeds",
    )
    return alt.vconcat(*panels).properties(title=title)


@functools.cache
def look_of(name: str) -> tuple[list[float], Sequence[float]]:
    """Returns the weights of ten logits, and the weight of one logit by length."""
    named = {name: normalizer(name)}
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        return shootout.weights_of(named, shootout.SCORES)[name].tolist(), shootout.sweep(named, LENGTHS)[name]


def of_normalizer(name: str) -> Any:
    """Weights of ten logits as bars and of one logit by length as a line, beside those of softmax."""
    shown, softmax = look_of(name), look_of(BASELINE)
    colours = palette([BASELINE, name])
    y = alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[-0.1, 1]))
    logit = alt.X("logit:O", title="logit", sort="descending", axis=alt.Axis(labelAngle=0, format=".1f"))
    n = charts.length_axis(LENGTHS, "logits in the row (log scale)")

    def points(x: alt.X, places: Sequence[float], weights: Sequence[float]) -> alt.Chart:
        field = x.shorthand.split(":")[0]
        data = [{field: place, "weight": round(float(weight), DIGITS)} for place, weight in zip(places, weights)]
        return alt.Chart(alt.Data(values=data)).encode(x=x, y=y)

    bars = points(logit, shootout.SCORES, shown[0]).mark_bar(color=colours[name])
    ticks = points(logit, shootout.SCORES, softmax[0]).mark_tick(color=colours[BASELINE], thickness=3, size=16)
    wide = points(n, LENGTHS, softmax[1]).mark_line(color=colours[BASELINE], strokeWidth=4)
    lines = [wide, *([points(n, LENGTHS, shown[1]).mark_line(color=colours[name])] if name != BASELINE else [])]
    panels = {"weights of ten logits": [bars, ticks], "weight of one logit of 3 in longer rows": lines}
    title = charts.chart_title(name, *(["blue: softmax"] if name != BASELINE else []))
    drawn = (alt.layer(*layers, title=charts.panel_title(called)) for called, layers in panels.items())
    return alt.vconcat(*(panel.properties(width=WIDTH, height=90) for panel in drawn)).properties(title=title)


def pretrained() -> Any:
    """What normalizers cost that are swapped into a pretrained language model, those that were read to the end."""
    losses = table("pretrained/losses")
    losses = losses.filter(pl.col("below").max().over("normalizer") == pl.col("below").max())
    cost = paired_losses(losses.filter(~pl.col("normalizer").str.contains(" learned on ")))
    least, most = (cost.filter(normalizer="adaptive").select(end).item() for end in (pl.min("more"), pl.max("more")))
    title = f"The published adaptive temperature costs SmolLM2 {least:.1f} to {most:.1f} nats a token, at any length"
    return loss_chart(cost, title)


def front() -> charts.Chart:
    """What each kind of temperatures finds of hidden facts by what it costs in loss of text."""
    cells = front_tables.cells_frame(table("front/answers"), table("front/losses"))
    found, softmax = (
        cells.filter(kind=front_tables.LEARNED, budget=0.01, length=512).select(pl.mean("found", "of_softmax")).row(0)
    )
    title = f"Within 1 % of loss one θ for each head finds {found:.0f} of 64 facts, softmax {softmax:.0f}"
    return front_tables.front_chart(cells, title, "SmolLM2-135M, texts of 512 tokens, budgets of 0 to 4 % of loss")


def front_theta() -> Any:
    """The temperatures that are learned within a budget of one percent."""
    theta = front_tables.theta_frame(table("front/theta"), table("front/shares"), 0.01)
    title = f"{(theta['log_theta'] < 0).sum()} of {len(theta)} heads become sharper, the others softer"
    return front_tables.theta_chart(theta, title, "log θ of each head of SmolLM2-135M at a budget of 1 %")


def dilution() -> charts.Chart:
    """What a law of β finds by the share of misses by dilution, of each task, model and length."""
    title = "Where misses are dilution, a law of β finds more of them"
    subtitles = (
        "a point a length, larger for longer; the split is of half the sets, the gain of the others;",
        "law: SSMax, β = 1 at the training length",
    )
    return points_chart(points(learned(table("dilution/cells")), ALL), title, *subtitles)


PICTURES: Mapping[str, Callable[[], Any]] = {
    "replication": lambda: precision.published_chart(table("precision_study/accuracy")),
    "board": lambda: board_chart(board_order()),
    "reach": reach,
    "largest_weight": largest_weight,
    "refits": refits,
    "needle_accuracy": lambda: needle.found_chart(table("needle/accuracy")),
    "needle_mass": lambda: needle.mass_chart(table("needle/mass")),
    "minilm_entropy": lambda: model_page.entropy_chart(table("minilm")),
    "polynomial": lambda: polynomial.curve_chart(table("polynomial/curves")),
    "extremes": lambda: extremes.growth_chart(table("extremes/betas")),
    "normalised_keys": lambda: normalised_keys.keys_chart(table("normalised_keys/betas")),
    "clrs_text": lambda: clrs_text.gains_chart(table("clrs_text/answers")),
    "pretrained": pretrained,
    "dilution": dilution,
    "front": front,
    "front_theta": front_theta,
    "frontier_losses": lambda: ablation.losses_chart(table("frontier/losses").filter(pl.col("recipe").is_in(RECIPES))),
    **{f"normalizers/{name}": functools.partial(of_normalizer, name) for name in METHODS},
}
"""How the chart of each picture is made, by its name."""


def main() -> None:
    """Draws the pictures that are named, or all."""
    names = sys.argv[1:] or PICTURES
    if unknown := [name for name in names if name not in PICTURES]:
        raise SystemExit(f"error: {unknown[0]} is no picture: it must be one of {', '.join(PICTURES)}")
    for name in names:
        write_whole(DOCS / "images" / f"{name}.svg", svg(specification(PICTURES[name]()), readers=True))
    print(f"drew {len(names)} pictures into {DOCS / 'images'}")


if __name__ == "__main__":
    main()
