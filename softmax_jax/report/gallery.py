"""The picture of every normalizer for its page."""

from collections.abc import Mapping, Sequence

import altair as alt
import jax

from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.colours import BASELINE, palette
from softmax_jax.report.looks import LOOK_LENGTHS, SCORES, sweep, weights_of

LENGTHS = LOOK_LENGTHS[::2]
DIGITS = 4


def pictures(names: Sequence[str]) -> dict[str, alt.HConcatChart]:
    """A picture for each of these methods, with its default numbers."""
    named = {name: normalizer(name) for name in dict.fromkeys((BASELINE, *names))}
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        rows = {name: weights.tolist() for name, weights in weights_of(named, SCORES).items()}
        lengths = sweep(named, LENGTHS)
    return {name: picture(rows, lengths, name) for name in names}


def picture(rows: Mapping[str, Sequence[float]], lengths: Mapping[str, Sequence[float]], name: str) -> alt.HConcatChart:
    """Weights of ten logits as bars and of one logit by length as a line, beside those of softmax."""
    weight = alt.Y("weight:Q", title="weight", scale=alt.Scale(domain=[-0.1, 1]))
    logit = alt.X("logit:O", title="logit", sort="descending", axis=alt.Axis(labelAngle=0, format=".1f"))
    n = alt.X("n:Q", title="logits in the row", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=LENGTHS))

    def points(key: str, values: Sequence[float] | Sequence[int], weights: Sequence[float]) -> alt.Chart:
        data = [{key: value, "weight": round(float(weight), DIGITS)} for value, weight in zip(values, weights)]
        return alt.Chart(alt.Data(values=data))

    colours = palette([BASELINE, name])
    bars = points("logit", SCORES, rows[name]).mark_bar(color=colours[name]).encode(x=logit, y=weight)
    ticks = points("logit", SCORES, rows[BASELINE]).mark_tick(color=colours[BASELINE], thickness=3, size=16)
    own = points("n", LENGTHS, lengths[name]).mark_line(color=colours[name], strokeWidth=2)
    softmax = points("n", LENGTHS, lengths[BASELINE]).mark_line(color=colours[BASELINE], strokeWidth=4)
    lines = [own.encode(x=n, y=weight), softmax.encode(x=n, y=weight)]
    left = alt.layer(bars, ticks.encode(x=logit, y=weight), title="What does it make of ten logits?")
    right = alt.layer(*(lines if name != BASELINE else lines[1:]), title="Does it hold on to one logit of 3?")
    return alt.hconcat(left.properties(width=300, height=130), right.properties(width=300, height=130))
