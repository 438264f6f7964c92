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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import polars as pl
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key
from rich.console import Console

from projects.clrs_text import report
from projects.clrs_text.algorithms import ALGORITHMS, Kind
from projects.clrs_text.answers import COLUMNS, TEST_SETS, evaluate_answers, lengths_of
from projects.clrs_text.report import HEADS, SWAPPED, THROUGHOUT, TUNED
from projects.clrs_text.task import ClrsText, Texts
from projects.clrs_text.tokens import TOKENIZERS, CharacterTokenizer, question_parts
from projects.decoder import Decoder
from softmax_jax.configs import load_preset
from softmax_jax.files import read_bytes, read_json, read_text, write_csv, write_json, write_whole
from softmax_jax.measures.evaluation import set_keys
from softmax_jax.measures.fits import TRAIN_LENGTHS
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.learned import initial_numbers, with_numbers
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.training.config import Config, changed
from softmax_jax.training.run import one_line_ends, run
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.training.trainer import Parameters, build_model
from softmax_jax.transforms.probe import probe

ASKED = "minimum"
"""The algorithm whose questions the heads are read at."""
HEAD_LENGTHS = (4, 8, 16, 31, 64, 128, 256)
TUNED_STEPS, TUNED_RATE = 10, 0.3
"""Fine-tuning takes this part of the steps, at this share of the learning rate, which falls to 0."""
REFIT_STEPS, REFIT_RATE = 100, 0.02
PLAIN = Normalizer(jax.nn.softmax)
"""What `probe` finds in a model, where the model itself would put what it was trained under."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    steps: command_line.UnlessGiven[int | None] = None
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
    output: command_line.UnlessGiven[Path | None] = None
    """Directory for the tables and the charts; results/clrs_text/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        one_of("--tokenizer", self.tokenizer, TOKENIZERS)
        command_line.each_once("--algorithms", self.algorithms)
        for name in self.algorithms:
            one_of("--algorithms", name, ALGORITHMS)
        if self.steps is not None:
            command_line.within("--steps", self.steps, 1, 2**31 - 1, 1000)
        command_line.within("--seeds", self.seeds, 1, 2**10, 2)
        command_line.within("--sets", self.sets, 1, 2**14, TEST_SETS)
        command_line.normalizer_names(self.normalizers)
        command_line.check_directory("--workdir", self.workdir)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), self.marked(dict.fromkeys(report.TABLES, "")))  # has places, or raises

    def marked(self, tables: dict[str, str]) -> dict[str, str]:
        """Tables by their marks on a page, which has those of either tokenizer."""
        return {f"{self.tokenizer}_{name}": table for name, table in tables.items()}

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
        rows = [(*row[:-1], "".join("01"[right] for right in row[-1])) for row in measure().rows()]
        write_csv(path, (*COLUMNS[:-1], "right"), rows)
    frame = pl.read_csv(read_bytes(path), schema_overrides={"right": pl.String})
    return frame.with_columns(pl.col("right").str.split("").list.eval(pl.element() == "1"))


def texts_of(task: ClrsText, keys: Key[Array, " sets"], n: int) -> Texts:
    """Returns the test sets of these keys, of which each gives one."""
    drawn = jax.vmap(lambda key: task.test_batch(key, n, 1))(keys)
    return jax.tree.map(lambda leaf: leaf[:, 0], drawn)


def places_of(task: ClrsText, keys: Key[Array, " sets"], n: int) -> Int[Array, "sets places"]:
    """Returns the right answers to the same sets, for a task of one algorithm that answers with places in a list."""
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


def heads_of(config: Config, parameters: Parameters, lengths: Sequence[int], sets: int) -> Iterator[report.HeadRow]:
    """What each head does where the answer to `minimum` is read, for one seed: means over fresh questions."""
    task = dataclasses.replace(as_texts(config), algorithms=(ASKED,))
    structure = build_model(task, config.normalizer)[0]
    model = nnx.merge(structure, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters))
    for n in lengths:
        (keys,) = set_keys([config.first_seed], n, sets)
        batch = texts_of(task, keys, n)
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


def main() -> None:
    """Trains, tests, draws, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with one_line_ends():
        keep_compiled_programs()
        answers, heads = measured(asked, command_line.plain_console())
        summary = report.summarize(answers)
        seen = report.seen_table(with_seen(answers, as_texts(next(asked.runs(0))[2])), summary)
        tables = {"learned": report.learned_table(summary), "regimes": report.regimes_table(summary), "seen": seen}
        with command_line.results_of("clrs_text", asked.output) as output:
            of_sets = answers.with_columns(accuracy=100 * pl.col("right").list.mean()).select(*COLUMNS, "regime")
            write_csv(output / "accuracy.csv", of_sets.columns, of_sets.rows())
            write_csv(output / "regimes.csv", summary.columns, summary.rows())
            write_csv(output / "heads.csv", tuple(HEADS), heads.rows())
            save_chart(report.regimes_chart(summary), output / "regimes", asked.paper)
            save_chart(report.heads_chart(heads), output / "heads", asked.paper)
            write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
        if asked.page:
            write_whole(asked.page, put_into(read_text(asked.page), asked.marked(tables)))
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
