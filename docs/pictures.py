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
import jax.numpy as jnp
import numpy as np
import polars as pl

from examples import needle
from projects.clrs_text import study as clrs_text
from softmax_jax import theory
from softmax_jax.files import write_whole
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import accuracy, charts, looks, probed, temperature
from softmax_jax.report.charts import BASELINE, BY_CAUSE, GREY, palette, svg
from softmax_jax.temperature import ALL_LENGTHS, FITS, TRAIN_LENGTHS, TemperatureFit
from softmax_jax.training.run_directory import SHIPPED
from studies import ablation, critical, extremes, polynomial, precision, trained_or_swapped

DOCS = Path(__file__).parent
SWAPS = ("softmax", "adaptive", "ssmax", "adaptive_refit_train", "hardmax")
"""Of the picture that says what helps; none of them saw a longer set than those of training."""
BAND = "mean of 10 seeds, 95 % band"
RUNS = {"paper_float32": "paper's recipe", "frontier": "frontier", "near_ties": "near ties"}
LENGTHS = looks.LOOK_LENGTHS[::2]
DIGITS = 4


def table(name: str) -> pl.DataFrame:
    """One of the CSV files."""
    return pl.read_csv(DOCS / "data" / f"{name}.csv")


def causes() -> Any:
    """What falls, why, and what helps."""
    return causes_chart(
        table("paper_float32"),
        SWAPS,
        "Why does attention lose the largest item, and what helps?",
        f"in float32, trained under softmax on at most 16 items; only the normalizer changes in the test; {BAND}",
    )


def replication() -> Any:
    """Ours beside the published rows."""
    frame = table("paper").filter(pl.col("normalizer").is_in(list(accuracy.ACCURACY)), pl.col("n") >= 16)
    return accuracy.accuracy_chart(frame, "Does the replication give the published numbers?")


def reach() -> Any:
    """Three recipes, as far as 65,536 items."""
    frames = {called: table(f"reach/{run}") for run, called in RUNS.items()}
    title = "How far can attention reach that was trained on sixteen items?"
    return reach_chart(frames, title, f"only the recipe of the training differs; {BAND}")


def largest_weight() -> Any:
    """Dispersion, in theory and in a trained model."""
    named = {name: normalizer(name) for name in ("softmax", "adaptive", "ssmax", "entmax15", "hardmax")}
    measured = table("paper_float32").filter(pl.col("normalizer").is_in(SWAPS))
    of_model = over_seeds(measured, ["normalizer", "n"], "max_weight", 0.0, 1.0)
    x = charts.length_axis(sorted(set(measured["n"])), "items in the set")
    title = charts.chart_title("What is left for the item that gets most?")
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        upper = lead_panel(named, 3.0)
    panels = alt.vconcat(upper, weight_panel(of_model, x, f"A trained head on max retrieval; {BAND}"))
    return panels.resolve_scale(color="independent").properties(title=title)


def lead_panel(named: looks.Named, lead: float, lengths: Sequence[int] = looks.LOOK_LENGTHS) -> Any:
    """The largest weight of a row whose first logit leads all others, which are equal, by its length."""
    row = jnp.zeros(max(lengths)).at[0].set(lead)
    weigh = jax.jit(lambda normalizer, n: normalizer(row, where=jnp.arange(max(lengths)) < n)[0])
    weights = np.array([[float(weigh(normalizer, n)) for n in lengths] for normalizer in named.values()])
    forced = math.ceil(theory.length_forced_below(0.5, spread=lead))
    mark = alt.Chart(alt.Data(values=[{"n": forced, "text": f"softmax: below one half from n = {forced}"}]))
    x = charts.length_axis(lengths, "logits in the row")
    marks = [
        mark.mark_rule(color=GREY).encode(x=x),
        mark.mark_text(align="left", dx=6, baseline="top").encode(x=x, y=alt.value(34), text="text:N"),
    ]
    frame = charts.long_frame({"normalizer": list(named), "n": lengths}, value=weights)
    return weight_panel(frame, x, f"One logit leads all others by {lead:g}", marks)


def weight_panel(frame: pl.DataFrame, x: alt.X, title: str, marks: Sequence[alt.Chart] = ()) -> Any:
    """Largest weights as lines."""
    y = alt.Y("value:Q", title="largest weight", scale=alt.Scale(domain=[0, 1]))
    colour, height = charts.colour_by("normalizer", palette(frame["normalizer"]), legend=False), 210
    layers = [*charts.lines(frame, x, y, colour), *marks, *charts.ends(frame, x, y, colour, height)]
    return alt.layer(*layers).properties(width=480, height=height, title=charts.panel_title(title))


def causes_chart(frame: pl.DataFrame, names: Sequence[str], *title: str) -> charts.Chart:
    """Accuracy under these normalizers, before areas of what softmax loses: to dispersion, and even under hardmax.

    Hardmax gives all weight to the largest logit, so what it loses is lost to the key, or to the value.
    """
    measured = over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    x, y = charts.length_axis(sorted(set(measured["n"]))), charts.percent_axis("accuracy (% of sets)")
    wide = measured.pivot("normalizer", index="n", values="value")
    ends = {"dispersion": ("softmax", "hardmax"), "key": ("hardmax", None)}
    areas = pl.concat(
        wide.select("n", cause=pl.lit(LOST[cause]), low=low, high=pl.max_horizontal(low, high or pl.lit(100.0)))
        for cause, (low, high) in ends.items()
    )
    scale = alt.Scale(domain=list(LOST.values()), range=[BY_CAUSE[cause] for cause in LOST])
    legend = alt.Legend(orient="top", direction="vertical", labelLimit=400, symbolOpacity=0.5)
    below = alt.Chart(charts.data(areas)).mark_area(opacity=0.3)
    cause = alt.Color("cause:N", title="softmax loses", sort=None, scale=scale, legend=legend)
    low = y.copy()
    low.shorthand = "low:Q"
    drawn = measured.filter(pl.col("normalizer").is_in(names))
    colour, height = charts.colour_by("normalizer", palette(names), legend=False), 340
    lines = [*charts.lines(drawn, x, y, colour), *charts.ends(drawn, x, y, colour, height)]
    chart = alt.layer(below.encode(x=x, y=low, y2="high", color=cause), alt.layer(*lines))
    return chart.resolve_scale(color="independent").properties(
        width=520, height=height, title=charts.chart_title(*title)
    )


LOST = {
    "dispersion": "to dispersion: the weight is spread over other items",
    "key": "to the key: another item has the largest logit",
}


def reach_chart(frames: Mapping[str, pl.DataFrame], *title: str) -> charts.Chart:
    """Accuracy of several runs, by the names that readers know them by: a line for each run and normalizer."""
    measured = pl.concat(
        over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0).with_columns(
            line=pl.lit(f"{run}: ") + pl.col("normalizer")
        )
        for run, frame in frames.items()
    )
    colours = palette(measured["normalizer"])
    of_line = {line: colours[name] for line, name in measured.select("line", "normalizer").rows()}
    x, y = charts.length_axis(sorted(set(measured["n"]))), charts.percent_axis("accuracy (% of sets)")
    colour, height = charts.colour_by("line", of_line, legend=False), 360
    layers = [*charts.lines(measured, x, y, colour), *charts.ends(measured, x, y, colour, height)]
    return alt.layer(*layers).properties(width=520, height=height, title=charts.chart_title(*title))


def fits_chart(runs: Mapping[str, Mapping[str, TemperatureFit]], *title: str) -> charts.Chart:
    """β by entropy, a panel for each of several runs: the published polynomial, and the refits with their bands.

    The last panel names the curves.
    """
    domain, highest = [0.5, 16.0], 6.0
    entropies, grid = alt.Scale(domain=[0, highest], nice=False), np.linspace(0, highest, 121)
    x = alt.X("entropy:Q", title="entropy (nats)", scale=entropies)
    y = alt.Y("value:Q", title="inverse temperature β", scale=alt.Scale(type="log", base=2, domain=domain))
    colour = charts.colour_by("normalizer", palette([temperature.PUBLISHED, ALL_LENGTHS, TRAIN_LENGTHS]), legend=False)
    panels = []
    for run, fits in runs.items():
        drawn = [
            pl.DataFrame({"normalizer": of, "entropy": grid, "value": f(grid)})
            for of, f in temperature.curves(fits).items()
        ]
        bands = [pl.DataFrame({"normalizer": name, **fit.band}) for name, fit in fits.items() if fit.band]
        bands = [of_fit.filter(pl.col("high") > domain[0]) for of_fit in bands]
        bands = [of_fit.with_columns(pl.col("low", "high").clip(*domain)) for of_fit in bands]
        layers = [charts.band(of_fit, x, y, colour) for of_fit in bands]
        layers += charts.lines(pl.concat(drawn), x, y, colour, point=False)
        if run == list(runs)[-1]:
            layers += charts.ends(pl.concat(drawn), x, y, colour, height=240)
        panels.append(alt.layer(*layers).properties(width=180, height=240, title=charts.panel_title(run)))
    return alt.hconcat(*panels).properties(title=charts.chart_title(*title))


def refits() -> Any:
    """The temperature fits of three shipped runs."""
    called = {"paper": "paper: products rounded", "frontier": "frontier", "paper_float32": "paper in float32"}
    fits = {
        shown: {name: TemperatureFit.load(SHIPPED / run / FITS[name]) for name in (ALL_LENGTHS, TRAIN_LENGTHS)}
        for run, shown in called.items()
    }
    return fits_chart(
        fits, "Which temperature is best for a row of given entropy?", "it depends on the model; 95 % bands over seeds"
    )


def of_precision(name: str) -> pl.DataFrame:
    """Returns a table of the study of precision."""
    return table(f"precision_study/{name}")


def of_pairs(n: int) -> Any:
    """Returns the accuracy at n items under each normalizer of each training."""
    return ablation.pairs_chart(table("frontier/accuracy"), n)


@functools.cache
def look_of(name: str) -> tuple[list[float], Sequence[float]]:
    """Returns the weights of ten logits, and the weight of one logit by length."""
    named = {name: normalizer(name)}
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        return looks.weights_of(named, looks.SCORES)[name].tolist(), looks.sweep(named, LENGTHS)[name]


def of_normalizer(name: str) -> Any:
    """Weights of ten logits as bars and of one logit by length as a line, beside those of softmax."""
    (weights, by_length), (softmax_weights, softmax_by_length) = look_of(name), look_of(BASELINE)
    weight = alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[-0.1, 1]))
    logit = alt.X("logit:O", title="logit", sort="descending", axis=alt.Axis(labelAngle=0, format=".1f"))
    n = alt.X("n:Q", title="logits in the row", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=LENGTHS))

    def points(key: str, values: Sequence[float] | Sequence[int], heights: Sequence[float]) -> alt.Chart:
        data = [{key: value, "weight": round(float(height), DIGITS)} for value, height in zip(values, heights)]
        return alt.Chart(alt.Data(values=data))

    colours = palette([BASELINE, name])
    bars = points("logit", looks.SCORES, weights).mark_bar(color=colours[name]).encode(x=logit, y=weight)
    ticks = points("logit", looks.SCORES, softmax_weights).mark_tick(color=colours[BASELINE], thickness=3, size=16)
    own = points("n", LENGTHS, by_length).mark_line(color=colours[name], strokeWidth=2)
    softmax = points("n", LENGTHS, softmax_by_length).mark_line(color=colours[BASELINE], strokeWidth=4)
    lines = [own.encode(x=n, y=weight), softmax.encode(x=n, y=weight)]
    left = alt.layer(bars, ticks.encode(x=logit, y=weight), title="What does it make of ten logits?")
    right = alt.layer(*(lines if name != BASELINE else lines[1:]), title="Does it hold on to one logit of 3?")
    return alt.hconcat(left.properties(width=300, height=130), right.properties(width=300, height=130))


PICTURES: Mapping[str, Callable[[], Any]] = {
    "accuracy": causes,
    "replication": replication,
    "reach": reach,
    "largest_weight": largest_weight,
    "refits": refits,
    "needle_accuracy": lambda: needle.found_chart(table("needle/accuracy")),
    "needle_mass": lambda: needle.mass_chart(table("needle/mass")),
    "minilm_entropy": lambda: probed.entropy_chart(table("minilm")),
    "polynomial": lambda: polynomial.curve_chart(table("polynomial/curves")),
    "critical": lambda: critical.rules_chart(table("critical/choices"), table("critical/accuracy")),
    "extremes": lambda: extremes.growth_chart(table("extremes/betas")),
    "clrs_text": lambda: clrs_text.regimes_chart(table("clrs_text/regimes")),
    "clrs_text_heads": lambda: clrs_text.heads_chart(table("clrs_text/heads")),
    "trained_or_swapped": lambda: trained_or_swapped.chart(table("trained_or_swapped/accuracy")),
    "precision_published": lambda: precision.published_chart(of_precision("accuracy"), of_precision("ceilings")),
    "precision_steps": lambda: precision.steps_chart(of_precision("recipes"), of_precision("recipe_ceilings")),
    "frontier_losses": lambda: ablation.losses_chart(table("frontier/losses")),
    **{f"frontier_pairs_{n}": functools.partial(of_pairs, n) for n in (1024, 4096, 16384)},
    **{f"normalizers/{name}": functools.partial(of_normalizer, name) for name in METHODS},
}
"""How the chart of each picture is made, by its name."""


def main() -> None:
    """Draws the pictures that are named, or all."""
    names = sys.argv[1:] or PICTURES
    if unknown := [name for name in names if name not in PICTURES]:
        raise SystemExit(f"error: {unknown[0]} is no picture: it must be one of {', '.join(PICTURES)}")
    for name in names:
        write_whole(DOCS / "images" / f"{name}.svg", svg(PICTURES[name](), readers=True))
    print(f"drew {len(names)} pictures into {DOCS / 'images'}")


if __name__ == "__main__":
    main()
