"""Must the normalizer be there in training? CLRS-Text under softmax, with another swapped in, and fine-tuned for it.

The decoder of the preset `clrs_text` is trained under softmax and tested under every normalizer asked for ("swapped"),
among them an adaptive temperature that its own loss fits to it while its parameters stay. Then it is trained on for a
tenth of its steps under each, from the same parameters ("tuned"), as the paper fine-tunes Gemma 2B; or another is
trained under it from its first step ("throughout"). What its heads do is read at the end of each question of `minimum`:
the entropy of their weights, and the weight of the entry that is the answer.

    python -m projects.clrs_text.study
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import altair as alt
import jax
import jax.numpy as jnp
import optax
import polars as pl
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key
from rich.console import Console

from projects.clrs_text.algorithms import ALGORITHMS, Kind
from projects.clrs_text.answers import COLUMNS, evaluate_answers, lengths_of, summarize_answers
from projects.clrs_text.task import PUBLISHED_LENGTHS, TEST_SETS, ClrsText, Texts
from projects.clrs_text.tokens import TOKENIZERS, CharacterTokenizer, question_parts
from projects.decoder import Decoder
from softmax_jax.commands.options import UnlessGiven, check_directory, each_once, normalizer_names, within
from softmax_jax.configs import load_preset
from softmax_jax.files import read_json, write_csv, write_json
from softmax_jax.measures.evaluation import set_keys
from softmax_jax.measures.statistics import detectable, paired_p_value
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.numbers import initial_numbers, with_numbers
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.report import charts, tables
from softmax_jax.report.charts import BASELINE, by_size, palette, reader_name
from softmax_jax.report.tables import number_or_dash
from softmax_jax.temperature import TRAIN_LENGTHS
from softmax_jax.training.config import Config, changed
from softmax_jax.training.progress import plain_console
from softmax_jax.training.run import run
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.training.trainer import Parameters, build_model
from softmax_jax.transforms.probe import probe
from studies.common import Options, start

ASKED = "minimum"
"""The algorithm whose questions the heads are read at."""
HEAD_LENGTHS = (4, 8, 16, 31, 64, 128, 256)
TUNED_STEPS, TUNED_RATE = 10, 0.3
"""Fine-tuning takes this part of the steps, at this share of the learning rate, which falls to 0."""
REFIT_STEPS, REFIT_RATE = 100, 0.02
PLAIN = Normalizer(jax.nn.softmax)
"""What `probe` finds in a model, where the model itself would put what it was trained under."""
SWAPPED, TUNED, THROUGHOUT = "swapped", "tuned", "throughout"
LEARNED = 50.0
"""Mean accuracy in percent at the lengths of training, from which an algorithm takes part in claims on lengths."""
SHOWN = (4, 12, 31, 64, 256)
BEYOND = (40, 48, 56, 64)
"""Lengths at which enough answers are of those that training has."""
SORTED = "insertion_sort"
"""The algorithm whose answers have no names that training lacks."""

HeadRow = tuple[int, int, int, int, float, float]
HEADS = {
    "n": pl.Int64,
    "seed": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "entropy": pl.Float64,
    "weight": pl.Float64,
}
"""Of each head where an answer is read: the entropy of its weights in nats, and the source's weight in percent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("learned", "models")

    steps: UnlessGiven[int | None] = None
    """Training steps of each model; those of the preset by default."""
    regimes: tuple[Literal["swapped", "tuned", "throughout"], ...] = (SWAPPED, TUNED)
    """Trained under softmax and swapped in the test; trained on under the normalizer; trained under it throughout."""
    normalizers: tuple[str, ...] = ("softmax", "adaptive", "ssmax")
    """Those to test; the numbers that one learns train with the model, where it trains under it."""
    tokenizer: str = "number"
    """One token for each number, or for each character."""
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    """What the models learn, all by default."""
    seeds: int = 2
    """Models of each kind."""
    sets: int = TEST_SETS
    """Test sets of every algorithm and length of each seed."""
    workdir: Path = Path("runs") / "clrs_text_study"
    """Directory for the runs, which are continued where they were stopped; what is finished is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("--tokenizer", self.tokenizer, TOKENIZERS)
        each_once("--algorithms", self.algorithms)
        for name in self.algorithms:
            one_of("--algorithms", name, ALGORITHMS)
        if self.steps is not None:
            within("--steps", self.steps, 1, 2**31 - 1, 1000)
        within("--seeds", self.seeds, 1, 2**10, 2)
        within("--sets", self.sets, 1, 2**14, TEST_SETS)
        normalizer_names(self.normalizers)
        check_directory("--workdir", self.workdir)

    def runs(self, seed: int) -> Iterator[tuple[str, str, Config, Path]]:
        """The regime, the normalizer, the settings and the directory of each run of a seed; that of softmax first."""
        preset = load_preset(ClrsText.name)
        task = {"tokenizer": self.tokenizer, "algorithms": self.algorithms}
        preset = changed(preset, first_seed=seed, seeds=1, steps=self.steps or preset.steps, **task)
        name = f"seed_{seed}" + (f"_{self.steps}_steps" if self.steps else "")
        name += f"_{self.tokenizer}s" if self.tokenizer == CharacterTokenizer.name else ""
        name += "".join(f"_{algorithm}" for algorithm in self.algorithms if self.algorithms != tuple(ALGORITHMS))
        base = self.workdir / f"softmax_{name}"
        yield SWAPPED, "softmax", preset, base
        tuned = changed(
            preset,
            start_from=str(base),
            steps=preset.steps // TUNED_STEPS,
            learning_rate=TUNED_RATE * preset.learning_rate,
            schedule="cosine_decay_schedule",
        )
        for other in self.normalizers:
            if TUNED in self.regimes:
                yield TUNED, other, changed(tuned, normalizer=other), self.workdir / f"{other}_tuned_{name}"
            if THROUGHOUT in self.regimes and other != "softmax":
                yield THROUGHOUT, other, changed(preset, normalizer=other), self.workdir / f"{other}_{name}"


def answers_of(config: Config, directory: Path, named: dict[str, Normalizer | None], sets: int) -> pl.DataFrame:
    """Whether each answer was right, under each normalizer."""
    _, parameters = load_checkpoint(directory)
    task = as_texts(config)
    options: dict[str, Any] = {"lengths": lengths_of(task, ()), "sets": sets, "seeds": config.all_seeds}
    return pl.concat(evaluate_answers(parameters, named, task=task, trained_under=config.normalizer, **options))


def refit(config: Config, directory: Path) -> Normalizer:
    """An adaptive temperature for this model: one β(H) of degree two for all heads, which starts at 1.

    Its coefficients go down the gradient of the model's own loss on batches that the training has not had, and are kept
    beside the model. H is clamped to what a row of the training can have.
    """
    task, path = as_texts(config), directory / "refit.json"
    most = math.log(max(sum(task.slots(name, task.longest)) for name in task.algorithms))
    base = Normalizer(jax.nn.softmax, EntropyPolynomial((0.0, 0.0, 1.0), 0.0, 0.25, (0.0, most)))
    if not path.exists():
        write_json(path, refitted_numbers(config, load_checkpoint(directory)[1], base))
    return with_numbers(base, read_json(path))


def refitted_numbers(config: Config, parameters: Parameters, base: Normalizer) -> dict[str, float]:
    """The coefficients, by name, for the first seed of a run."""
    task, optimizer = as_texts(config), optax.adam(optax.cosine_decay_schedule(REFIT_RATE, REFIT_STEPS))
    model = nnx.merge(
        build_model(task, config.normalizer)[0], jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters)
    )
    numbers = initial_numbers(base, tuple(f"coefficients_{index}" for index in range(3)), None)

    @jax.jit
    def step(numbers: Any, state: Any, index: Int[Array, ""]) -> tuple[Any, Any]:
        batch = task.training_batch(jnp.int32(config.first_seed), index)
        grads = jax.grad(lambda n: task.loss(task.scores(model, batch, None, with_numbers(base, n)), batch))(numbers)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the integer step
            updates, state = optimizer.update(grads, state)
        return optax.apply_updates(numbers, updates), state

    state = optimizer.init(numbers)
    for index in range(REFIT_STEPS):
        numbers, state = step(numbers, state, jnp.int32(config.steps + index))
    return {name: float(number) for name, number in numbers.items()}


def as_texts(config: Config) -> ClrsText:
    """The task of a run, known to be CLRS-Text."""
    assert isinstance(config.task, ClrsText)
    return config.task


def kept(path: Path, measure: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """A frame of answers that is measured once, and then read from its file."""
    if not path.exists():
        answers = measure().select(*COLUMNS[:-1], "right")
        rows = [(*row[:-1], "".join("01"[right] for right in row[-1])) for row in answers.rows()]
        write_csv(path, (*COLUMNS[:-1], "right"), rows)
    frame = pl.read_csv(path.read_bytes(), schema_overrides={"right": pl.String})
    frame = frame.with_columns(pl.col("right").str.split("").list.eval(pl.element() == "1"))
    return frame.with_columns(accuracy=100 * pl.col("right").list.mean())


def places_of(task: ClrsText, keys: Key[Array, " sets"], n: int) -> Int[Array, "sets places"]:
    """Returns the right answers to the sets of these keys, for a task of one algorithm that answers with places."""
    algorithm = ALGORITHMS[task.algorithms[0]]

    def one(key: Key[Array, ""]) -> Int[Array, " places"]:
        inputs = algorithm.draw(jax.random.split(key, 1)[0], jnp.int32(n), n, task.decimals)
        return jnp.stack(list(algorithm.solve(inputs, jnp.int32(n), task.decimals).values()))

    return jax.vmap(one)(keys)


@functools.cache
def are_seen(task: ClrsText, n: int, seed: int, sets: int) -> list[bool]:
    """Whether every place in the answer to each test set is one that training has."""
    places = places_of(task, set_keys([seed], n, sets)[0], n)
    return (places.max(1) < task.longest).tolist()


def with_seen(answers: pl.DataFrame, task: ClrsText) -> pl.DataFrame:
    """The answers that are places among the numbers, with whether training has answers like them."""
    of_one = {name: dataclasses.replace(task, algorithms=(name,)) for name in task.algorithms}
    places = [name for name in of_one if set(ALGORITHMS[name].outputs.values()) == {Kind.INTEGER}]
    found = answers.filter(pl.col("algorithm").is_in(places))
    keys = found.select("algorithm", "n", "seed", pl.col("right").list.len()).rows()
    return found.with_columns(seen=pl.Series([are_seen(of_one[name], *rest) for name, *rest in keys]))


def source_of(task: ClrsText, batch: Texts, places: Int[Array, " sets"]) -> Bool[Array, "sets width"]:
    """Which tokens are those of the number at these places, in questions that are one list."""
    tokens, there = batch.tokens[:, 0], batch.text[:, 0] >= 0
    before, _, behind = question_parts(ASKED)
    number = jnp.cumsum(there, 1) - 1 - len(task.vocabulary.literal(str(before)))
    last = batch.read[:1, :1] - len(task.vocabulary.literal(str(behind)))
    inside = (number >= 0) & (jnp.arange(tokens.shape[1])[None] <= last)
    if task.tokenizer == CharacterTokenizer.name:
        space = inside & (tokens == task.vocabulary.literal(" ")[0])
        number, inside = jnp.cumsum(space, 1), inside & ~space
    return inside & (number == places[:, None])


def heads_of(config: Config, parameters: Parameters, lengths: Sequence[int], sets: int) -> Iterator[HeadRow]:
    """What each head does where the answer to `minimum` is read, for one seed: means over fresh questions."""
    task = dataclasses.replace(as_texts(config), algorithms=(ASKED,))
    structure = build_model(task, config.normalizer)[0]
    model = nnx.merge(structure, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters))
    for n in lengths:
        (keys,) = set_keys([config.first_seed], n, sets)
        batch = jax.tree.map(lambda leaf: leaf[:, 0], jax.vmap(lambda key, n=n: task.test_batch(key, n, 1))(keys))
        source = source_of(task, batch, places_of(task, keys, n)[:, 0])
        for layer, (entropies, weights) in enumerate(seen_from_answers(model, batch, source)):
            for head, (entropy, weight) in enumerate(zip(entropies.tolist(), weights.tolist())):
                yield n, config.first_seed, layer, head, entropy, weight


def seen_from_answers(
    model: Decoder, batch: Texts, source: Bool[Array, "sets width"]
) -> list[tuple[Float[Array, " heads"], Float[Array, " heads"]]]:
    """Of each layer: entropy of the weights in nats, and the weight of the source in percent, means over questions."""
    tokens, at = batch.tokens[:, 0], int(batch.read[0, 0])
    there = batch.text[:, 0] >= 0
    mask = there[:, None, :] & jnp.tri(tokens.shape[1], dtype=bool)[None]
    look = probe(lambda tokens, mask: model(tokens, mask, None, PLAIN), also=lambda weights: weights[..., at, :])
    _, probed = jax.jit(look)(tokens, mask)
    of_source = [jnp.where(source[:, None], rows.also, 0).sum(-1) for rows in probed]
    return [(rows.entropy[..., at].mean(0), 100 * weight.mean(0)) for rows, weight in zip(probed, of_source)]


def measured(asked: Arguments, console: Console) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Trains and tests what is not there yet: the answers, with the regime of each, and what the heads do."""
    frames, heads = [], []
    for seed in range(asked.seeds):
        for regime, under, config, directory in asked.runs(seed):
            run(config, directory, console)
            named: dict[str, Normalizer | None] = {under: None}
            if regime == SWAPPED:
                named |= {name: normalizer(name) for name in asked.normalizers if name != under}
                named |= {TRAIN_LENGTHS: refit(config, directory)} if "adaptive" in asked.normalizers else {}
                heads += heads_of(config, load_checkpoint(directory)[1], HEAD_LENGTHS, min(asked.sets, 25))
            path = directory / f"answers_{'_'.join(named)}_{asked.sets}.csv"
            answers = kept(path, lambda c=config, d=directory, n=named: answers_of(c, d, n, asked.sets))
            frames.append(answers.with_columns(regime=pl.lit(regime)))
            console.print(f"{under}, {regime}: seed {seed} tested", highlight=False)
    return pl.concat(frames), pl.DataFrame(heads, HEADS, orient="row")


def summarize(answers: pl.DataFrame) -> pl.DataFrame:
    """Accuracy, interval and p of each regime, against softmax in the same regime on the same sets."""
    parts = [
        summarize_answers(part.drop("regime")).with_columns(regime=pl.lit(str(regime)))
        for (regime,), part in answers.group_by("regime", maintain_order=True)
    ]
    return pl.concat(parts)


def at_training_lengths(summary: pl.DataFrame) -> dict[str, float]:
    """The mean accuracy of each algorithm at the lengths of training, as trained under softmax."""
    trained = summary.filter(pl.col("n").is_in(PUBLISHED_LENGTHS), regime=SWAPPED, normalizer="softmax")
    return dict(trained.group_by("algorithm", maintain_order=True).agg(pl.mean("accuracy")).rows())


def learned_table(summary: pl.DataFrame) -> str:
    """What the models trained under softmax answer right, by algorithm and length."""
    means, rows = at_training_lengths(summary), []
    for algorithm, mean in means.items():
        found = summary.filter(algorithm=algorithm, regime=SWAPPED, normalizer="softmax")
        by_length = dict(found.select("n", "accuracy").rows())
        rows.append([algorithm, f"{mean:.1f}", *(number_or_dash(by_length.get(n), ".1f") for n in SHOWN)])
    return tables.markdown_table(["algorithm", "lengths of training", *map(str, SHOWN)], rows)


def models_table(answers: pl.DataFrame) -> str:
    """Returns what tuning gains over softmax tuned as long where answers need no new name, each model counted once.

    p is of the paired t-test over models, for one cell; the last column is the mean gain that this test would find in
    80 % of the cases.
    """
    of_sort = answers.filter(pl.col("n").is_in(BEYOND[1:]), algorithm=SORTED, regime=TUNED)
    softmax = of_sort.filter(normalizer=BASELINE).select("n", "seed", softmax="accuracy")
    pairs = of_sort.filter(pl.col("normalizer") != BASELINE).join(softmax, on=["n", "seed"])
    rows: list[list[str]] = []
    for (name, n), cells in pairs.sort("normalizer", "n", "seed").group_by("normalizer", "n", maintain_order=True):
        gains = (cells["accuracy"] - cells["softmax"]).to_list()
        p = paired_p_value(cells["accuracy"].to_list(), cells["softmax"].to_list())
        of_models = ", ".join(f"{gain:+.1f}" for gain in gains)
        mean, least = f"{sum(gains) / len(gains):+.1f}", number_or_dash(detectable(gains), ".0f")
        rows.append([reader_name(str(name)), str(n), of_models, mean, number_or_dash(p, ".2f"), least])
    return tables.markdown_table(["tuned under", "numbers", "gain of each model", "mean", "p", "could be seen"], rows)


def seen_shares(answers: pl.DataFrame, summary: pl.DataFrame) -> pl.DataFrame:
    """Returns, beyond training and in percent, answers that training has, and right ones among these and the others."""
    each = answers.explode("right", "seen").filter(pl.col("algorithm").is_in(_learned(summary)))
    each = each.filter(pl.col("n").is_in(BEYOND), regime=SWAPPED, normalizer=BASELINE)
    right = pl.col("right")
    shares = {"seen": pl.mean("seen"), "right_seen": right.filter("seen").mean()}
    shares["right_not_seen"] = right.filter(~pl.col("seen")).mean()
    by_length = each.group_by("algorithm", "n", maintain_order=True)
    return by_length.agg(**{name: 100 * share for name, share in shares.items()})


def _learned(summary: pl.DataFrame) -> list[str]:
    """The algorithms that are learned, or the first where none is, for something to look at."""
    means = at_training_lengths(summary)
    return [algorithm for algorithm, mean in means.items() if mean >= LEARNED] or list(means)[:1]


def regimes_chart(summary: pl.DataFrame) -> charts.Chart:
    """Draws accuracy by length: a row for each algorithm that is learned, a panel for each regime.

    The title is about the first algorithm at the lengths of training.
    """
    algorithms = _learned(summary)
    shown = summary.filter(pl.col("algorithm").is_in(algorithms)).rename({"accuracy": "value"})
    colour = charts.colour_by("normalizer", palette(shown["normalizer"]), orient="top", columns=2)
    x = charts.length_axis(sorted(set(shown["n"])), "length (log scale)").axis(values=[4, 16, 64, 256])
    y = charts.percent_axis("right answers (%)").axis(tickCount=4)
    rows = []
    for algorithm in algorithms:
        panels = [
            alt.layer(*charts.lines(of_one, x, y, colour, point=False)).properties(
                width=175, height=110, title=charts.panel_title(str(regime))
            )
            for (regime,), of_one in shown.filter(algorithm=algorithm).group_by("regime", maintain_order=True)
        ]
        rows.append(alt.hconcat(*panels, title=charts.panel_title(algorithm)))
    of_first = shown.filter(pl.col("n").is_in(PUBLISHED_LENGTHS), algorithm=algorithms[0], regime=SWAPPED)
    means = dict(of_first.group_by("normalizer", maintain_order=True).agg(pl.mean("value")).rows())
    swapped = [f"Swapped in, {reader_name(name)} gives {algorithms[0]} {mean:.0f} %" for name, mean in means.items()]
    title = charts.chart_title(
        f"{swapped[1]}, softmax {means[BASELINE]:.0f}" if swapped[1:] else "Accuracy by length",
        f"at the lengths of training, {min(PUBLISHED_LENGTHS)} to {max(PUBLISHED_LENGTHS)}; swapped: only in the test;",
        "tuned: trained on under it; 95 % intervals over sets",
    )
    return alt.vconcat(*rows).properties(title=title)


def heads_chart(heads: pl.DataFrame) -> charts.Chart:
    """Of every head of the first model, by length: the entropy of its weights, and the weight of the answer's entry."""
    first = heads.filter(pl.col("seed") == pl.col("seed").min())
    means = first.group_by("layer", "head", "n", maintain_order=True).agg(pl.mean("entropy", "weight"))
    means = means.with_columns(layer=pl.format("layer {}", pl.col("layer") + 1))
    colour = charts.colour_by("layer", by_size(sorted(set(means["layer"]))), None, orient="top")
    x = charts.length_axis(sorted(set(means["n"])), "numbers in the question")
    panels = []
    for field, axis in (("weight", "weight of the smallest number (%)"), ("entropy", "entropy (nats)")):
        y = alt.Y("value:Q", title=axis)
        frame = means.rename({field: "value"}).select("layer", "head", "n", "value")
        marks = alt.Chart(charts.data(frame)).mark_line(point=True)
        panels.append(marks.encode(x=x, y=y, color=colour, detail="head:N").properties(width=350, height=190))
    long, low = means.group_by("n").agg(pl.max("weight")).sort("n").row(-1)
    title = charts.chart_title(
        f"At {long} numbers the best head puts {low:.0f} % of its weight on the smallest",
        f"where the answer to {ASKED} is read;",
        f"a line for each head of one model; trained at {min(PUBLISHED_LENGTHS)} to {max(PUBLISHED_LENGTHS)} numbers",
    )
    return alt.vconcat(*panels).properties(title=title)


def study(asked: Arguments) -> None:
    """Trains, tests, draws, writes."""
    answers, heads = measured(asked, plain_console())
    summary = summarize(answers)
    seen = seen_shares(with_seen(answers, as_texts(next(asked.runs(0))[2])), summary)
    frames = {"accuracy": answers.select(*COLUMNS, "regime"), "regimes": summary, "seen": seen, "heads": heads}
    drawn = {"regimes": regimes_chart(summary), "heads": heads_chart(heads)}
    tables = dict(zip(asked.marks(), (learned_table(summary), models_table(answers))))
    asked.write("clrs_text", frames, drawn, tables)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
