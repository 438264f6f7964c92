"""What the shoot-out prints and draws: how the normalizers look before training, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from softmax_jax.measures.evaluation import half_width, paired_p_value
from softmax_jax.normalizers.facts import FACTS
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.charts import PALETTE, Chart
from softmax_jax.report.tables import number_or_dash
from softmax_jax.tasks.published import SPARSE_ATTENTION
from softmax_jax.training.shootout import Outcome

BASELINE = "softmax"
SCORES = (0.5, -0.3, 0.1, 2.5, -0.1, 0.3, 0.0, 2.0, -0.5, 0.2)
CONCENTRATED = (0.1, 0.0, 0.2, 5.0, 0.1, -0.1, 0.0, 0.1, 0.0, 0.1)
DIFFUSE = (1.0, 0.9, 1.1, 1.0, 0.8, 1.2, 0.9, 1.1, 1.0, 0.95)
LOOK_LENGTHS = tuple(2**power for power in range(3, 17))
Named = Mapping[str, Normalizer]


class Mean(NamedTuple):
    """A mean over seeds, with half its 95 % interval where there are two or more."""

    value: float
    interval: float | None


def mean(values: Sequence[float]) -> Mean:
    """The mean with its interval by Student's t."""
    return Mean(float(np.mean(values)), half_width(values))


def formula_table(names: Sequence[str]) -> Table:
    """What each normalizer computes."""
    table = Table(title="What each computes", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("normalizer", "formula", "numbers", "source"):
        table.add_column(column)
    for name in names:
        method = name.split("(")[0]
        fact = FACTS.get(method)
        numbers = ", ".join(f"{key} = {_rounded(value)}" for key, value in METHODS[method].numbers.items()) or "none"
        table.add_row(name, *((fact.formula, numbers, fact.source) if fact else ("", numbers, "")))
    return table


def _rounded(value: Any) -> str:
    """A number, or each of several, to three digits."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_rounded, value))})"
    return str(value) if value is None else format(value, ".3g")


def weights_of(named: Named, scores: Sequence[float]) -> dict[str, np.ndarray]:
    """The weights that each normalizer gives these logits."""
    return {name: np.asarray(normalizer(jnp.asarray(scores, jnp.float32))) for name, normalizer in named.items()}


def weight_table(named: Named, scores: Sequence[float], title: str) -> Table:
    """The weights of one row, and their sum."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("logits")
    for score in scores:
        table.add_column(f"{score:g}", justify="right")
    table.add_column("sum", justify="right", style="bold")
    for name, weights in weights_of(named, scores).items():
        table.add_row(name, *[f"{weight:.3f}" for weight in weights], f"{weights.sum():.3f}")
    return table


def weight_chart(named: Named, rows: Mapping[str, Sequence[float]], title: str) -> Chart:
    """Bars of the weights of some rows, a panel for each normalizer and row."""
    values = [
        {"row": row, "normalizer": name, "entry": index + 1, "logit": score, "weight": float(weight)}
        for row, scores in rows.items()
        for name, weights in weights_of(named, scores).items()
        for index, (score, weight) in enumerate(zip(scores, weights))
    ]
    bars = alt.Chart(alt.Data(values=values)).mark_bar()
    coloured = bars.encode(
        x=alt.X("entry:O", title="entry of the row", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("weight:Q", title="weight"),
        color=_colour(named, legend=False),
        tooltip=["normalizer:N", "entry:O", "logit:Q", "weight:Q"],
    ).properties(width=190, height=110)
    rows_of = alt.Row("row:N", title=None, sort=list(rows)) if len(rows) > 1 else alt.Undefined
    facet: dict[str, Any] = {"column": alt.Column("normalizer:N", title=None, sort=list(named))}
    if len(rows) > 1:
        facet["row"] = rows_of
    return coloured.facet(**facet).properties(title=alt.TitleParams(title, anchor="start"))


def sweep(named: Named, lengths: Sequence[int] = LOOK_LENGTHS) -> dict[str, list[float]]:
    """The weight of one logit of 3 among 0.5·cos(0.1·i), for each length."""
    index = jnp.arange(max(lengths))
    logits = (0.5 * jnp.cos(0.1 * index.astype(jnp.float32))).at[0].set(3.0)
    # The rest of the longest row is masked, so that each normalizer is compiled once.
    weigh = jax.jit(lambda normalizer, n: normalizer(logits, where=index < n)[0])
    return {name: [float(weigh(normalizer, n)) for n in lengths] for name, normalizer in named.items()}


def sweep_table(found: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> Table:
    """The sweep as numbers, at every other length and the last."""
    table = Table(title="Largest weight by length of the row", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("n")
    shown = sorted({*range(0, len(lengths), 2), len(lengths) - 1})
    for index in shown:
        table.add_column(str(lengths[index]), justify="right")
    for name, values in found.items():
        table.add_row(name, *[f"{values[index]:.4f}" for index in shown])
    return table


def sweep_chart(found: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> Chart:
    """The sweep as lines."""
    values = [
        {"normalizer": name, "n": n, "weight": weight}
        for name, weights in found.items()
        for n, weight in zip(lengths, weights)
    ]
    lines = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("n:Q", title="logits in the row", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=lengths)),
        y=alt.Y("weight:Q", title="largest weight", scale=alt.Scale(domain=[0, 1])),
        color=_colour(found),
    )
    return alt.layer(lines.mark_line().encode(strokeDash=_dashes(found)), lines.mark_point(filled=True)).properties(
        width=620, height=320, title=alt.TitleParams("Who still sees one logit of 3 among many near 0?", anchor="start")
    )


def _colour(names: Mapping[str, Any] | Sequence[str], legend: bool = True) -> alt.Color:
    domain = list(names)
    return alt.Color(
        "normalizer:N",
        sort=None,
        legend=alt.Legend(title="normalizer", symbolOpacity=1) if legend else None,
        scale=alt.Scale(domain=domain, range=[PALETTE[index % len(PALETTE)] for index in range(len(domain))]),
    )


def _dashes(names: Mapping[str, Any] | Sequence[str]) -> alt.StrokeDash:
    """Every other line dashed, so that one that lies on another hides neither."""
    domain = list(names)
    dashes = [[1, 0] if index % 2 == 0 else [6, 4] for index in range(len(domain))]
    return alt.StrokeDash("normalizer:N", legend=None, scale=alt.Scale(domain=domain, range=dashes))


def at_length(outcome: Outcome, length: int, quantity: str) -> list[float]:
    """Accuracy or loss of every seed at a length."""
    return [getattr(test, quantity) for test in outcome.tests if test.length == length]


def results_table(outcomes: Sequence[Outcome], length: int) -> Table:
    """Every normalizer at the length of training; the best of each column is marked."""
    columns = {
        "accuracy (%)": ([mean(at_length(o, length, "accuracy")) for o in outcomes], max, ".2f"),
        "test loss": ([mean(at_length(o, length, "loss")) for o in outcomes], min, ".4f"),
        "train loss": ([mean(o.losses[:, -1].tolist()) for o in outcomes], min, ".4f"),
        "train seconds": ([Mean(o.seconds, None) for o in outcomes], min, ".1f"),
    }
    table = Table(title=f"Trained and tested at length {length}", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("normalizer", *columns, "learned", "p"):
        table.add_column(column, justify="left" if column in ("normalizer", "learned") else "right", no_wrap=True)
    reference = next((at_length(o, length, "accuracy") for o in outcomes if o.normalizer == BASELINE), [])
    for index, outcome in enumerate(outcomes):
        cells = []
        for means, best_of, form in columns.values():
            best = best_of(format(some.value, form) for some in means) if best_of is min else None
            top = best_of(means, key=lambda some: some.value).value
            marked = format(means[index].value, form) == (best or format(top, form))
            cells.append(("* " if marked else "") + _with_interval(means[index], form))
        p_value = paired_p_value(at_length(outcome, length, "accuracy"), reference)
        learned = "; ".join(
            f"{name} = " + ", ".join(f"{value:.2f}" for value in values.mean((0, 2)))
            for name, values in outcome.learned.items()
        )
        own = outcome.normalizer == BASELINE
        table.add_row(outcome.normalizer, *cells, learned or "–", number_or_dash(None if own else p_value, ".2g"))
    table.caption = (
        "mean of the seeds ± half its 95 % interval (t); * best of its column; loss in nats; seconds of all seeds "
        "together, without compiling; learned: mean over seeds and heads, by layer; p: paired t-test of the accuracy "
        "against softmax"
    )
    table.caption_justify = "left"
    return table


def _with_interval(some: Mean, form: str) -> str:
    return format(some.value, form) + ("" if some.interval is None else f"±{format(some.interval, form)}")


def lengths_table(outcomes: Sequence[Outcome]) -> Table:
    """Test accuracy of every normalizer by length."""
    lengths = sorted({test.length for outcome in outcomes for test in outcome.tests})
    table = Table(title="Test accuracy (%) by length", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("normalizer")
    for length in lengths:
        table.add_column(str(length), justify="right")
    for outcome in outcomes:
        cells = [_with_interval(mean(at_length(outcome, length, "accuracy")), ".1f") for length in lengths]
        table.add_row(outcome.normalizer, *cells)
    return table


def print_looks(console: Console, named: Named, found: Mapping[str, Sequence[float]]) -> None:
    """The four looks at the normalizers before any training."""
    console.print(formula_table(list(named)))
    console.print(weight_table(named, SCORES, "Ten logits through each"))
    console.print(weight_table(named, CONCENTRATED, "A concentrated row"))
    console.print(weight_table(named, DIFFUSE, "A diffuse row"))
    console.print(sweep_table(found))


def look_charts(named: Named, found: Mapping[str, Sequence[float]]) -> dict[str, Chart]:
    """The looks as charts, by the name of their file."""
    return {
        "weights": weight_chart(named, {"": SCORES}, "What does each normalizer make of the same ten logits?"),
        "rows": weight_chart(
            named,
            {"concentrated": CONCENTRATED, "diffuse": DIFFUSE},
            "Does it tell a concentrated row from a diffuse one?",
        ),
        "sweep": sweep_chart(found),
    }


def outcome_charts(outcomes: Sequence[Outcome], length: int) -> dict[str, Chart]:
    """What came of the training, by the name of the file."""
    accuracies = {o.normalizer: at_length(o, length, "accuracy") for o in outcomes}
    losses = {o.normalizer: at_length(o, length, "loss") for o in outcomes}
    seconds = {o.normalizer: [o.seconds] for o in outcomes}
    charts = {
        "accuracy": bar_chart(accuracies, "test accuracy (%)", "Which normalizer classifies best?"),
        "loss": bar_chart(losses, "test loss (nats)", "Which normalizer has the lowest test loss?"),
        "time": bar_chart(seconds, "seconds to train all seeds", "What does each normalizer cost?"),
        "losses": curve_chart(outcomes),
    }
    if len({test.length for outcome in outcomes for test in outcome.tests}) > 1:
        charts["lengths"] = length_chart(outcomes)
    return charts


def bar_chart(values: Mapping[str, Sequence[float]], quantity: str, title: str) -> Chart:
    """A bar for each normalizer with its 95 % interval."""
    data = [
        {"normalizer": name, "value": value, "low": value - (interval or 0), "high": value + (interval or 0)}
        for name, (value, interval) in ((name, mean(some)) for name, some in values.items())
    ]
    base = alt.Chart(alt.Data(values=data)).encode(y=alt.Y("normalizer:N", title=None, sort=None))
    bars = base.mark_bar().encode(x=alt.X("value:Q", title=quantity), color=_colour(values, legend=False))
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    return alt.layer(bars, intervals).properties(
        width=520, height=26 * len(data), title=alt.TitleParams(title, anchor="start")
    )


def curve_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Training loss by epoch with 95 % bands."""
    data = [
        {
            "normalizer": outcome.normalizer,
            "epoch": epoch + 1,
            "loss": value,
            "low": max(value - (interval or 0), value / 10),
            "high": value + (interval or 0),
        }
        for outcome in outcomes
        for epoch, (value, interval) in enumerate(mean(column) for column in outcome.losses.T.tolist())
    ]
    names = [outcome.normalizer for outcome in outcomes]
    y = alt.Scale(type="log", nice=False)
    base = alt.Chart(alt.Data(values=data)).encode(x=alt.X("epoch:Q", title="epoch"), color=_colour(names))
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="training loss (nats)", scale=y), y2="high:Q")
    line = base.mark_line().encode(y=alt.Y("loss:Q", title="training loss (nats)", scale=y), strokeDash=_dashes(names))
    title = alt.TitleParams("How fast does each learn?", subtitle="mean of the seeds, 95 % band", anchor="start")
    return alt.layer(band, line).properties(width=620, height=320, title=title)


def length_chart(outcomes: Sequence[Outcome]) -> Chart:
    """Test accuracy by length with 95 % bands."""
    lengths = sorted({test.length for outcome in outcomes for test in outcome.tests})
    data = [
        {
            "normalizer": outcome.normalizer,
            "n": length,
            "accuracy": value,
            "low": max(value - (interval or 0), 0),
            "high": min(value + (interval or 0), 100),
        }
        for outcome in outcomes
        for length in lengths
        for value, interval in [mean(at_length(outcome, length, "accuracy"))]
    ]
    names = [outcome.normalizer for outcome in outcomes]
    exponents = {math.log2(length) for length in lengths}
    title = "test accuracy (%)"
    y = alt.Scale(domain=[0, 100])
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X(
            "n:Q",
            title="length at test time",
            scale=alt.Scale(type="log", base=2, domain=[2 ** min(exponents), 2 ** max(exponents)]),
            axis=alt.Axis(values=lengths),
        ),
        color=_colour(names),
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=title, scale=y), y2="high:Q")
    line = base.mark_line().encode(y=alt.Y("accuracy:Q", title=title, scale=y), strokeDash=_dashes(names))
    return alt.layer(band, line).properties(
        width=620,
        height=320,
        title=alt.TitleParams(
            "Trained short, tested long: who holds?", subtitle="mean of the seeds, 95 % band", anchor="start"
        ),
    )


def published_table(task: str) -> Table:
    """What the paper on sparse attention reports on a task of that name, and how its setting differs."""
    rows = SPARSE_ATTENTION[task]
    multiples = sorted({multiple for row in rows.values() for multiple in row})
    table = Table(title=f"Published: {task} (arXiv 2506.16640)", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("normalizer")
    for multiple in multiples:
        table.add_column(f"{multiple} ×", justify="right")
    for name, row in rows.items():
        table.add_row(name, *[number_or_dash(row.get(multiple), ".1f") for multiple in multiples])
    table.caption = (
        "by multiple of the longest training length, 64 tokens. Another setting than ours: % of sequences answered "
        "wholly right, written token by token by a larger causal model, 20 to 50 million training sequences; quoted "
        "at second hand"
    )
    table.caption_justify = "left"
    return table
