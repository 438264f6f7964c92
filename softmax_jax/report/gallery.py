"""Draws the picture of every normalizer for its page: python -m softmax_jax.report.gallery [--output DIR]."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from rich.console import Console

from softmax_jax.files import write_whole
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report.charts import BASELINE, PALETTE
from softmax_jax.report.looks import LOOK_LENGTHS, SCORES, sweep, weights_of
from softmax_jax.runtime.command_line import check_directory, one_line_errors, parse

LENGTHS = LOOK_LENGTHS[::2]
DIGITS = 4
OWN = PALETTE[0]
INK = "currentColor"
"""The colour of the text around the picture, which its style sheet sets for light and dark pages."""
STYLE = "<style>svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"

SPOKEN = re.compile(r' (?:aria-\w+|role)="[^"]*"')


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    output: Path = Path("docs/images/normalizers")
    """Directory for a picture of each method, as SVG."""

    def __post_init__(self) -> None:
        check_directory("--output", self.output)


def pictures(names: Sequence[str]) -> dict[str, str]:
    """A picture in SVG for each of these methods, with its default numbers."""
    named = {name: normalizer(name) for name in dict.fromkeys((BASELINE, *names))}
    rows = {name: weights.tolist() for name, weights in weights_of(named, SCORES).items()}
    lengths = sweep(named, LENGTHS)
    return {name: svg(picture(rows, lengths, name)) for name in names}


def picture(rows: Mapping[str, Sequence[float]], lengths: Mapping[str, Sequence[float]], name: str) -> alt.HConcatChart:
    """Weights of ten logits as bars and of one logit by length as a line, those of softmax as dashes."""
    weight = alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[-0.1, 1]))
    logit = alt.X("logit:O", title="logit", sort="descending", axis=alt.Axis(labelAngle=0, format=".1f"))
    n = alt.X("n:Q", title="logits in the row", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=LENGTHS))

    def points(key: str, values: Sequence[float] | Sequence[int], weights: Sequence[float]) -> alt.Chart:
        data = [{key: value, "weight": round(float(weight), DIGITS)} for value, weight in zip(values, weights)]
        return alt.Chart(alt.Data(values=data))

    bars = points("logit", SCORES, rows[name]).mark_bar(color=OWN).encode(x=logit, y=weight)
    ticks = points("logit", SCORES, rows[BASELINE]).mark_tick(color=INK, thickness=2, size=16)
    line = points("n", LENGTHS, lengths[name]).mark_line(color=OWN, strokeWidth=3).encode(x=n, y=weight)
    dashes = points("n", LENGTHS, lengths[BASELINE]).mark_line(color=INK, strokeDash=[4, 3], strokeWidth=1.5)
    left = alt.layer(bars, ticks.encode(x=logit, y=weight), title="What does it make of ten logits?")
    right = alt.layer(line, dashes.encode(x=n, y=weight), title="Does it hold on to one logit of 3?")
    return alt.hconcat(left.properties(width=300, height=130), right.properties(width=300, height=130))


def svg(chart: alt.HConcatChart) -> str:
    """The chart without a background, its text in the colour that `STYLE` gives it."""
    axis: dict[str, Any] = dict.fromkeys(("domainColor", "tickColor", "labelColor", "titleColor", "gridColor"), INK)
    plain = chart.configure(background="transparent").configure_view(stroke=None)
    coloured = plain.configure_title(color=INK, anchor="start").configure_axis(**axis, gridOpacity=0.15)
    drawn = vl_convert.vegalite_to_svg(coloured.to_json())
    drawn = SPOKEN.sub("", drawn)  # the page's own words stand beside the picture, and this halves its size
    end_of_tag = drawn.index(">") + 1
    return drawn[:end_of_tag] + STYLE + drawn[end_of_tag:] + "\n"


def main() -> None:
    """Draws and writes."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors(Console(stderr=True)):
        for name, drawn in pictures(list(METHODS)).items():
            write_whole(arguments.output / f"{name}.svg", drawn)
    print(f"wrote {len(METHODS)} pictures to {arguments.output}")


if __name__ == "__main__":
    main()
