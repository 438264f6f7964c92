"""Tables and charts of a shoot-out: what each normalizer makes of a few rows, and how its models learned.

The first needs no training: formulas, the weights of a few rows, and those of one logit among many.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import palette
from softmax_jax.experiment.report.tables import new_table, number_or_dash, with_interval
from softmax_jax.experiment.training.config import Config
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import method_of

SCORES = (0.5, -0.3, 0.1, 2.5, -0.1, 0.3, 0.0, 2.0, -0.5, 0.2)
CONCENTRATED = (0.1, 0.0, 0.2, 5.0, 0.1, -0.1, 0.0, 0.1, 0.0, 0.1)
DIFFUSE = (1.0, 0.9, 1.1, 1.0, 0.8, 1.2, 0.9, 1.1, 1.0, 0.95)
LEAD = 3.0
"""The one logit that stands out among many near 0."""
LOOK_LENGTHS = tuple(2**power for power in range(3, 17))
Named = Mapping[str, Normalizer]
CAPTION = (
    "mean of the seeds ± half its 95 % interval (t); * best of its column; loss in nats; seconds of all seeds "
    "together, without compiling; learned: mean over seeds and heads, by layer; p: paired t-test of the accuracy "
    "against softmax, corrected by Holm for all in the table; each seed is one sample"
)
BANDS = "mean of the seeds, 95 % band"


def formula_table(names: Sequence[str]) -> Table:
    """Returns a table of what each normalizer computes."""
    table = new_table("What each computes", "normalizer", "formula", "numbers", "source", names=4)
    for name in names:
        method, arguments = method_of(name)
        entry = method.entry
        numbers = (
            ", ".join(f"{key} = {rounded(value)}" for key, value in (method.numbers | arguments).items()) or "none"
        )
        table.add_row(name, *((entry.formula, numbers, entry.source) if entry else ("", numbers, "")))
    return table


def rounded(value: Any) -> str:
    """Returns a number, or each of several, to three digits."""
    if isinstance(value, tuple):
        return f"({', '.join(map(rounded, value))})"
    return str(value) if value is None else format(value, ".3g")


def weights_of(named: Named, scores: Sequence[float]) -> dict[str, np.ndarray]:
    """Returns the weights that each normalizer gives these logits."""
    return {name: np.asarray(normalizer(jnp.asarray(scores, float))) for name, normalizer in named.items()}


def weight_table(named: Named, scores: Sequence[float], title: str) -> Table:
    """Returns a table of the weights of one row and their sum."""
    table = new_table(title, "logits", *(f"{score:g}" for score in scores), "sum")
    table.columns[-1].style = "bold"
    for name, weights in weights_of(named, scores).items():
        table.add_row(name, *[f"{weight:.3f}" for weight in weights], f"{weights.sum():.3f}")
    return table


def weight_chart(named: Named, rows: Mapping[str, Sequence[float]], title: str) -> charts.Chart:
    """Draws the weights of some rows as bars, a panel for each normalizer and row."""
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
        color=charts.colour_by("normalizer", palette(named), legend=False),
        tooltip=["normalizer:N", "entry:O", "logit:Q", "weight:Q"],
    ).properties(width=190, height=110)
    panels: dict[str, Any] = {"column": alt.Column("normalizer:N", title=None, sort=list(named))}
    if len(rows) > 1:
        panels["row"] = alt.Row("row:N", title=None, sort=list(rows))
    return coloured.facet(**panels).properties(title=charts.chart_title(title))


def sweep(named: Named, lengths: Sequence[int] = LOOK_LENGTHS, spread: float = 0.5) -> dict[str, list[float]]:
    """Returns the weight of one logit of 3 among spread·cos(0.1·i), for each length."""
    index = jnp.arange(max(lengths))
    logits = (spread * jnp.cos(0.1 * index.astype(float))).at[0].set(LEAD)
    # The rest of the longest row is masked, so that each normalizer is compiled once.
    weigh = jax.jit(lambda normalizer, n: normalizer(logits, where=index < n)[0])
    return {name: [float(weigh(normalizer, n)) for n in lengths] for name, normalizer in named.items()}


def sweep_table(swept: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> Table:
    """Returns a table of a sweep at every other length and the last."""
    shown = sorted({*range(0, len(lengths), 2), len(lengths) - 1})
    table = new_table("Largest weight by length of the row", "n", *(str(lengths[index]) for index in shown))
    for name, weights in swept.items():
        table.add_row(name, *[f"{weights[index]:.4f}" for index in shown])
    return table


def sweep_chart(swept: Mapping[str, Sequence[float]], lengths: Sequence[int] = LOOK_LENGTHS) -> charts.Chart:
    """Draws a sweep, a line for each normalizer."""
    places = {"normalizer": list(swept), "n": lengths}
    frame = charts.long_frame(places, value=np.array(list(swept.values())))
    y = alt.Y("value:Q", title="largest weight", scale=alt.Scale(domain=[0, 1]))
    sharp = sum(weights[-1] >= 0.5 for weights in swept.values())
    title = f"{sharp} of {len(swept)} keep half their weight on one logit of 3 among {max(lengths):,}"
    x = charts.length_axis(lengths, "logits in the row")
    return charts.named_lines(frame, x, y, charts.chart_title(title))


def print_looks(console: Console, named: Named, swept: Mapping[str, Sequence[float]]) -> None:
    """Prints formulas, the weights of three rows, and the sweep."""
    console.print(formula_table(list(named)))
    console.print(weight_table(named, SCORES, "Ten logits through each"))
    console.print(weight_table(named, CONCENTRATED, "A concentrated row"))
    console.print(weight_table(named, DIFFUSE, "A diffuse row"))
    console.print(sweep_table(swept))


def look_charts(named: Named, swept: Mapping[str, Sequence[float]]) -> dict[str, charts.Chart]:
    """Returns the charts of the rows and of the sweep, by the names of their files."""
    rows = {"concentrated": CONCENTRATED, "diffuse": DIFFUSE}
    return {
        "weights": weight_chart(named, {"": SCORES}, "The weights of ten logits under each normalizer"),
        "rows": weight_chart(named, rows, "The weights of a concentrated and of a diffuse row"),
        "sweep": sweep_chart(swept),
    }


class Outcomes(NamedTuple):
    """The outcome of the training and the tests under every normalizer."""

    tests: pl.DataFrame
    """A row for each normalizer, length and seed: n, accuracy in percent and loss in nats."""
    losses: pl.DataFrame
    """A row for each normalizer, seed and epoch: the mean training loss in nats, with dropout."""
    learned: dict[str, dict[str, Float[np.ndarray, "seeds layers heads"]]]
    """By normalizer, its learned numbers."""
    seconds: dict[str, float]
    """By normalizer, the time of the training of all seeds together, without compiling."""


def print_outcomes(console: Console, config: Config, outcomes: Outcomes) -> None:
    """Prints the table of the results, and that by length if there are several."""
    console.print(results_table(outcomes, config.task.longest))
    if outcomes.tests["n"].n_unique() > 1:
        console.print(lengths_table(outcomes))


def by_normalizer(frame: pl.DataFrame, column: str) -> dict[str, list[float]]:
    """Returns the values of all seeds of each normalizer."""
    return dict(frame.group_by("normalizer", maintain_order=True).agg(column).rows())


def results_table(outcomes: Outcomes, length: int) -> Table:
    """Returns a table of every normalizer at the length of training; the best of each column is marked."""
    tests = outcomes.tests.filter(n=length)
    accuracies = by_normalizer(tests, "accuracy")
    last = outcomes.losses.filter(pl.col("epoch") == pl.max("epoch"))
    columns = {
        "accuracy (%)": with_best_marked(accuracies, max, ".2f"),
        "test loss": with_best_marked(by_normalizer(tests, "loss"), min, ".4f"),
        "train loss": with_best_marked(by_normalizer(last, "loss"), min, ".4f"),
        "train seconds": with_best_marked({name: [seconds] for name, seconds in outcomes.seconds.items()}, min, ".1f"),
    }
    table = new_table(f"Trained and tested at length {length}", "normalizer", *columns, "learned", "p")
    table.columns[-2].justify = "left"
    table.caption = CAPTION
    p_values = dict(summarize(tests, family="n").select("normalizer", "p_value").rows())
    for name, numbers in outcomes.learned.items():
        learned = [
            f"{number} = {', '.join(f'{mean:.2f}' for mean in values.mean((0, 2)))}"
            for number, values in numbers.items()
        ]
        p_cell = number_or_dash(p_values[name], ".2g")
        table.add_row(name, *(cells[name] for cells in columns.values()), "; ".join(learned) or "–", p_cell)
    return table


def with_best_marked(values: Mapping[str, Sequence[float]], best_of: Callable[..., float], form: str) -> dict[str, str]:
    """Returns the cells of a column, with a star before those that print like the best."""
    best = format(best_of(np.mean(by_seed) for by_seed in values.values()), form)
    return {
        name: ("* " if format(np.mean(by_seed), form) == best else "") + with_interval(by_seed, form, "±")
        for name, by_seed in values.items()
    }


def lengths_table(outcomes: Outcomes) -> Table:
    """Returns a table of the test accuracy of every normalizer by length."""
    lengths = sorted(set(outcomes.tests["n"]))
    table = new_table("Test accuracy (%) by length", "normalizer", *map(str, lengths))
    for name in outcomes.learned:
        at_length = [outcomes.tests.filter(normalizer=name, n=n)["accuracy"].to_list() for n in lengths]
        table.add_row(name, *[with_interval(accuracies, sign="±") for accuracies in at_length])
    return table


def outcome_charts(outcomes: Outcomes, length: int) -> dict[str, charts.Chart]:
    """Returns the charts of the training, by the names of their files."""
    drawn = {"accuracy": bar_chart(outcomes.tests.filter(n=length)), "losses": curve_chart(outcomes)}
    return drawn | ({"lengths": length_chart(outcomes)} if outcomes.tests["n"].n_unique() > 1 else {})


def bar_chart(tests: pl.DataFrame) -> charts.Chart:
    """Draws the test accuracy as a horizontal bar for each normalizer with its 95 % interval."""
    means = over_seeds(tests, ["normalizer"], "accuracy")
    colour = charts.colour_by("normalizer", palette(means["normalizer"]), legend=False)
    base = alt.Chart(charts.data(means)).encode(y=alt.Y("normalizer:N", title=None, sort=None))
    bars = base.mark_bar().encode(x=alt.X("value:Q", title="test accuracy (%)"), color=colour)
    intervals = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    title = charts.chart_title("Test accuracy by normalizer")
    return (bars + intervals).properties(width=520, height=26 * len(means), title=title)


def curve_chart(outcomes: Outcomes) -> charts.Chart:
    """Draws training loss by epoch with 95 % bands."""
    means = over_seeds(outcomes.losses, ["normalizer", "epoch"], "loss")
    # On a logarithmic scale a band cannot reach 0.
    means = means.with_columns(low=pl.max_horizontal("low", pl.col("value") / 10))
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1))
    y = charts.log_axis("training loss (nats)", [*means["low"], *means["high"]])
    return charts.named_lines(means, x, y, charts.chart_title("Loss by epoch", BANDS), point=False)


def length_chart(outcomes: Outcomes) -> charts.Chart:
    """Draws test accuracy by length with 95 % bands."""
    means = over_seeds(outcomes.tests, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    x = charts.length_axis(sorted(set(means["n"])), "length at test time")
    y = charts.percent_axis("test accuracy (%)")
    return charts.named_lines(means, x, y, charts.chart_title("Accuracy beyond the length of training", BANDS))
