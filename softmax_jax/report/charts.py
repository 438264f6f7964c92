"""Charts of what was measured."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import vl_convert

from softmax_jax.evaluation import Summary
from softmax_jax.files import write_whole
from softmax_jax.tasks import published

Chart = alt.LayerChart | alt.FacetChart
PNG_SCALE = 2
FAIR = "adaptive_refit saw every length, adaptive_refit_train those of training alone"
"""What to say wherever the refit to all lengths is shown."""
PALETTE = ["#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#eeca3b", "#79706e"]


def accuracy_chart(summaries: Sequence[Summary], seeds: int, title: str) -> Chart:
    """Accuracy by number of items: a line and a 95 % band per normalizer, the published softmax row dashed."""
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
    reference = "softmax, published"
    dashed = [
        {"normalizer": reference, "n": n, "accuracy": accuracy}
        for n, accuracy in published.ACCURACY["softmax"].items()
        if n in lengths
    ]
    colour = alt.Color(
        "normalizer:N",
        title="normalizer at test time",
        sort=None,
        legend=alt.Legend(symbolOpacity=1),
        scale=alt.Scale(
            domain=[*names, reference] if dashed else names,
            range=[*(PALETTE[index % len(PALETTE)] for index in range(len(names))), "#555555"],
        ),
    )
    x = alt.X("n:Q", title="items in the set", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=lengths))
    y = alt.Y("accuracy:Q", title="accuracy (% of sets)", scale=alt.Scale(domain=[0, 100]))
    base = alt.Chart(alt.Data(values=measured)).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="accuracy (% of sets)"), y2="high:Q")
    line = base.mark_line(point=True).encode(y=y)
    layers = [band, line]
    if dashed:
        layers.append(alt.Chart(alt.Data(values=dashed)).mark_line(strokeDash=[5, 4]).encode(x=x, y=y, color=colour))
    subtitle = [f"mean of {seeds} seeds, 95 % band" if seeds > 1 else "one seed"]
    if "adaptive_refit" in names:
        subtitle.append(FAIR)
    return alt.layer(*layers).properties(
        width=640, height=360, title=alt.TitleParams(title, subtitle=subtitle, anchor="start")
    )


def save_chart(chart: Chart, path: Path) -> list[Path]:
    """Writes the chart beside each other as PNG and SVG; `path` has no suffix. Returns the files."""
    specification = chart.to_json()
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    write_whole(png, vl_convert.vegalite_to_png(specification, scale=PNG_SCALE))
    write_whole(svg, vl_convert.vegalite_to_svg(specification))
    return [png, svg]
