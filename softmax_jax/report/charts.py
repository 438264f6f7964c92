"""Charts of what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from softmax_jax.measures.evaluation import Summary
from softmax_jax.runtime.files import write_whole
from softmax_jax.tasks import published

Chart = alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart
PNG_SCALE = 2
FAIR = "adaptive_refit saw every length, adaptive_refit_train those of training alone"
"""What to say wherever the refit to all lengths is shown."""
PALETTE = ["#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#eeca3b", "#79706e"]
GREY = "#8a8a8a"
"""For references: to be seen on white and on black."""
DASHES = [6, 4]


def accuracy_chart(summaries: Sequence[Summary], seeds: int, title: str) -> Chart:
    """Accuracy by number of items: a line and a 95 % band per normalizer, the published rows dashed.

    A click on a name in the legend switches its line off and on again.
    """
    names = list(dict.fromkeys(summary.normalizer for summary in summaries))
    measured = [
        {
            "normalizer": summary.normalizer,
            "n": summary.n,
            "accuracy": summary.accuracy,
            "low": max(0.0, summary.accuracy - (summary.interval or 0)),
            "high": min(100.0, summary.accuracy + (summary.interval or 0)),
        }
        for summary in summaries
    ]
    lengths = sorted({summary.n for summary in summaries})
    dashed = [
        {"normalizer": f"{name}, published", "n": n, "accuracy": accuracy}
        for name, row in published.ACCURACY.items()
        for n, accuracy in row.items()
        if n in lengths
    ]
    colours = palette(names)
    references = {f"{name}, published": colours.get(name, GREY) for name in published.ACCURACY if dashed}
    colour = colour_by("normalizer", colours | references, "normalizer at test time")
    dash = dash_by("normalizer", {name: name in references for name in colours | references}, "normalizer at test time")
    x, y = length_axis(lengths), alt.Y("accuracy:Q", title="accuracy (% of sets)", scale=alt.Scale(domain=[0, 100]))
    switch = legend_switch("normalizer", [*names, *references])
    base = alt.Chart(alt.Data(values=measured)).encode(x=x, color=colour)
    band = base.mark_area().encode(
        y=alt.Y("low:Q", title="accuracy (% of sets)"), y2="high:Q", opacity=shown(switch, 0.2, 0.0)
    )
    line = base.mark_line(point=True).encode(y=y, strokeDash=dash, opacity=shown(switch))
    layers = [band, line]
    if dashed:
        reference = alt.Chart(alt.Data(values=dashed)).mark_line()
        layers.append(reference.encode(x=x, y=y, color=colour, strokeDash=dash, opacity=shown(switch)))
    subtitle = [f"mean of {seeds} seeds, 95 % band" if seeds > 1 else "one seed"]
    if "adaptive_refit" in names:
        subtitle.append(FAIR)
    subtitle += lying_on_another(measured, "accuracy", within=0.05)
    return alt.layer(*layers).add_params(switch).properties(width=640, height=360, title=chart_title(title, *subtitle))


def lying_on_another(records: Sequence[Mapping[str, Any]], field: str, within: float) -> list[str]:
    """A line of text on the normalizers that are within so much of an earlier one at every n.

    >>> records = [{"normalizer": name, "n": 4, "value": value} for name, value in (("a", 1.0), ("b", 2.0), ("c", 1.0))]
    >>> lying_on_another(records, "value", within=0.1)
    ['c lies on a']
    """
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        curves.setdefault(record["normalizer"], {})[record["n"]] = record[field]
    found = []
    for index, (name, curve) in enumerate(curves.items()):
        for earlier, other in list(curves.items())[:index]:
            if other.keys() == curve.keys() and all(abs(curve[n] - other[n]) <= within for n in curve):
                found.append(f"{name} lies on {earlier}")
                break
    return [", ".join(found)] if found else []


def palette(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, in turn."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def colour_by(field: str, colours: Mapping[str, str], title: str) -> alt.Color:
    """These colours, with a legend in their order."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", title=title, sort=None, legend=line_legend(), scale=scale)


def dash_by(field: str, dashed: Mapping[str, bool], title: str) -> alt.StrokeDash:
    """Dashes for the names that ask for them; in one legend with the colour of the same field and title."""
    scale = alt.Scale(domain=list(dashed), range=[DASHES if wanted else [1, 0] for wanted in dashed.values()])
    return alt.StrokeDash(f"{field}:N", title=title, sort=None, scale=scale, legend=line_legend())


def line_legend() -> alt.Legend:
    """Strokes, as wide as lines and opaque, whatever the marks are."""
    return alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, symbolSize=300, labelLimit=260)


def length_axis(lengths: Sequence[int]) -> alt.X:
    """The number of items, on a scale of powers of two that begins and ends with the lengths."""
    scale = alt.Scale(type="log", base=2, domain=[min(lengths), max(lengths)], nice=False)
    return alt.X("n:Q", title="items in the set", scale=scale, axis=alt.Axis(values=list(lengths), labelOverlap=True))


def chart_title(title: str, *subtitle: str) -> alt.TitleParams:
    """The question at the left, with what one must know to read the chart under it."""
    return alt.TitleParams(title, subtitle=list(subtitle) or alt.Undefined, anchor="start", offset=12)


def panel_title(title: str) -> alt.TitleParams:
    """What one of several panels shows, above its left edge."""
    return alt.TitleParams(title, anchor="start", frame="group", fontSize=12)


def legend_switch(field: str, names: Sequence[str]) -> alt.Parameter:
    """A selection of names, all of them at first; each click in the legend takes one out or puts it back."""
    everything: Any = [{field: name} for name in names]
    return alt.selection_point(fields=[field], bind="legend", toggle="true", empty=False, value=everything)


def shown(switch: alt.Parameter, on: float = 1.0, off: float = 0.04) -> Any:
    """The opacity of what the switch leaves on or has switched off."""
    return alt.condition(switch, alt.value(on), alt.value(off), empty=False)


def save_chart(chart: Chart, path: Path) -> list[Path]:
    """Writes the chart beside each other as PNG and SVG; `path` has no suffix. Returns the files."""
    specification = chart.to_json()
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    write_whole(png, vl_convert.vegalite_to_png(specification, scale=PNG_SCALE))
    write_whole(svg, vl_convert.vegalite_to_svg(specification))
    return [png, svg]
