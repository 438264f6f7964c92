"""The results of a shoot-out as tables for a terminal and as charts."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import altair as alt
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

CAPTION = (
    "mean of the seeds ± half its 95 % interval (t); * best of its column; loss in nats; seconds of all seeds "
    "together, without compiling; learned: mean over seeds and heads, by layer; p: paired t-test of the accuracy "
    "against softmax, corrected by Holm for all in the table; each seed is one sample"
)
BANDS = "mean of the seeds, 95 % band"


class Outcomes(NamedTuple):
    """The outcome of the normalizers."""

    tests: pl.DataFrame
    """A row for each normalizer, length and seed: n, accuracy in percent and loss in nats."""
    losses: pl.DataFrame
    """A row for each normalizer, seed and epoch: the mean training loss in nats, with dropout."""
    learned: dict[str, dict[str, Float[np.ndarray, "seeds layers heads"]]]
    """By normalizer, the numbers that it learned."""
    seconds: dict[str, float]
    """By normalizer, the time of the training of all seeds together, without compiling."""


def print_outcomes(console: Console, config: Config, outcomes: Outcomes) -> None:
    """Prints the table of the results, and that by length if there are several."""
    console.print(results_table(outcomes, config.task.longest))
    if outcomes.tests["n"].n_unique() > 1:
        console.print(lengths_table(outcomes))


def by_normalizer(frame: pl.DataFrame, column: str) -> dict[str, list[float]]:
    """The values of every seed."""
    return dict(frame.group_by("normalizer", maintain_order=True).agg(column).rows())


def results_table(outcomes: Outcomes, length: int) -> Table:
    """Every normalizer at the length of training; the best of each column is marked."""
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
    """The cells of a column, with a star before those that print as the best does."""
    best = format(best_of(np.mean(of_seeds) for of_seeds in values.values()), form)
    return {
        name: ("* " if format(np.mean(of_seeds), form) == best else "") + with_interval(of_seeds, form, "±")
        for name, of_seeds in values.items()
    }


def lengths_table(outcomes: Outcomes) -> Table:
    """Test accuracy of every normalizer by length."""
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
