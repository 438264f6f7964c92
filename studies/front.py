"""What does it cost to find hidden facts? One θ for each head of SmolLM2-135M, at budgets of 0 to 4 % of loss on text.

    python -m studies.texts texts
    python -m studies.front --texts texts/prose.txt texts/code.txt --output results/front
    python -m studies.front --output results/front --collect docs/data/front

From half of each text a direction of log θ is learned for each seed, once, under the largest budget. For each budget it
is scaled: the largest factor is sought that keeps the budget on other passages. Then facts hidden in a third part of
the texts, with other names and words, are asked for, and the loss of text is measured there. Placebos are the same θ
permuted over the heads, θ learned from text without facts, and one β for all heads.

Each cell leaves a CSV file, and one that is there is not computed again. All cells take some five hours on two cores,
the first quarter of an hour gives one seed at 512 tokens. `--quick` takes a few minutes.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Float, Int

from softmax_jax.experiment.commands.parse import each_once, parse, within
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.language_models.decoder import Sizes, scores
from softmax_jax.experiment.language_models.loading import Model, load
from softmax_jax.experiment.language_models.needles import make_needles
from softmax_jax.experiment.language_models.temperatures import (
    Each,
    draw_passages,
    largest_share,
    learn_direction,
    passage_losses,
    read_and_ask,
)
from softmax_jax.experiment.measures.units import Unit, compute, read
from softmax_jax.files import read_json, read_text, versions, write_csv, write_json
from softmax_jax.refusal import Refusal

BUDGETS = (0.01, 0.04, 0.0025, 0.02, 0.005, 0.0)
"""Shares by which the loss of text may rise, in the order of the work."""
FACTS = 8
FURTHEST = 2.0
"""The largest factor of a learned log θ that is tried."""
HALVINGS = 4
SOFTMAX, LEARNED, PERMUTED, FROM_TEXT, ONE_BETA = "softmax", "learned", "permuted", "from text", "one β"
WORDS = (
    "butter circle coffee copper corner desert doctor flower fruit glass horse iron jazz letter market metal music "
    "planet powder ribbon rose shadow shield silk soup stone sugar summer temple thunder ticket tower"
)
NAMES = "Michael Mary Paul Susan Karen George Frank Linda Brian Kevin Oliver Henry Kate Charles William Joseph"
"""Words and names of the questions of the test; none is learned on."""
COLUMNS = {
    "theta": ("kind", "seed", "layer", "head", "log_theta"),
    "shares": ("kind", "seed", "budget", "share"),
    "losses": ("kind", "seed", "budget", "text", "passage", "loss"),
    "answers": ("kind", "seed", "budget", "length", "text", "question", "right", "loss"),
}
Rows = Iterator[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    model: str = "smollm2"
    """smollm2, a GGUF file, or a directory of safetensors."""
    texts: tuple[Path, ...] = ()
    """Files of text."""
    output: Path = Path("results/front")
    """Directory for the CSV files of the cells."""
    seeds: int = 5
    """Seeds of learning."""
    collect: Path | None = None
    """Put the files of all cells together in this directory, and stop."""
    quick: bool = False
    """Take a look in a few minutes: one seed, two budgets, 256 tokens."""

    def __post_init__(self) -> None:
        within("--seeds", self.seeds, 1, 100, 5)
        if not self.collect:
            each_once("--texts", [path.stem for path in self.texts])


class Setting(NamedTuple):
    """What made the temperatures of all heads."""

    kind: str
    seed: int = 0
    budget: float = 0.0

    def named(self) -> str:
        """Returns the setting as part of the name of a file."""
        return f"{self.kind.replace(' ', '_').replace('β', 'beta')}_{self.seed}_{self.budget:g}"


@partial(jax.jit, static_argnames=("sizes",))
def answer(
    parameters: Any,
    tokens: Int[Array, "texts length"],
    questions: Int[Array, "texts facts question"],
    log_theta: Each,
    candidates: Int[Array, " candidates"],
    sizes: Sizes,
) -> Float[Array, "texts facts candidates"]:
    """Returns the log-probability of each candidate among them after each question, which sees its text alone."""

    def answer_text(pair: tuple[Array, Array]) -> Array:
        _, asked = read_and_ask(parameters, sizes, *pair, log_theta)
        return jax.nn.log_softmax(scores(parameters, asked)[:, candidates])

    return jax.lax.map(answer_text, (tokens, questions))


class Study:
    """The cells of the study of one model."""

    def __init__(self, arguments: Arguments, model: Model):
        self.output, self.model, self.seeds = arguments.output, model, 1 if arguments.quick else arguments.seeds
        self.shape = (len(model.parameters["layers"]["query"]), model.sizes.heads)
        texts = {path.stem: model.encode(read_text(path)) for path in arguments.texts}
        parts = {name: np.split(tokens, [len(tokens) // 2, len(tokens) * 5 // 8]) for name, tokens in texts.items()}
        self.learned_on, self.judged_on, self.tested_on = (
            [part[place] for part in parts.values()] for place in range(3)
        )
        self.names = list(texts)
        quick = arguments.quick
        self.lengths, self.budgets = ((256,), BUDGETS[:2]) if quick else ((512, 2048, 4096), BUDGETS)
        self.texts, self.passages, self.steps = (2, 1, 2) if quick else (8, 2, 16)
        """Texts with facts of each length, passages of each text, and steps of learning, of one passage each."""

    def units(self) -> Iterator[Unit]:
        """Yields all cells, the most important first."""
        first, *longer = self.lengths
        yield from self.cells([Setting(SOFTMAX)], first)
        for seed in range(self.seeds):
            yield from self.path(LEARNED, seed)
            yield from self.cells([Setting(LEARNED, seed, budget) for budget in self.budgets], first)
            yield from self.cells([Setting(PERMUTED, seed, budget) for budget in self.budgets if budget], first)
            if seed == 0:
                for kind in (ONE_BETA, FROM_TEXT):
                    yield from self.path(kind, seed)
                    yield from self.cells([Setting(kind, seed, budget) for budget in self.budgets], first)
        for length in longer:
            settings = [Setting(SOFTMAX), *(Setting(LEARNED, 0, budget) for budget in self.budgets)]
            yield from self.cells([*settings, Setting(PERMUTED, 0, 0.01), Setting(PERMUTED, 0, 0.04)], length)

    def path(self, kind: str, seed: int) -> Iterator[Unit]:
        """Yields the units of a direction of log θ and of its factors by budget."""
        name = Setting(kind, seed).named().rpartition("_")[0]
        yield Unit(f"theta_{name}", COLUMNS["theta"], partial(self.learn, kind, seed))
        yield Unit(f"shares_{name}", COLUMNS["shares"], partial(self.scale, kind, seed), f"theta_{name}")

    def cells(self, settings: Sequence[Setting], length: int) -> Iterator[Unit]:
        """Yields the units of questions in texts of a length, and at the first length those of the loss of text."""
        for setting in settings:
            needs = f"shares_{self.source(setting)}" if setting.kind != SOFTMAX else ""
            name = setting.named()
            yield Unit(f"answers_{length}_{name}", COLUMNS["answers"], partial(self.answers, setting, length), needs)
            if length == self.lengths[0]:
                yield Unit(f"losses_{name}", COLUMNS["losses"], partial(self.losses, setting), needs)

    def source(self, setting: Setting) -> str:
        """Returns the name of the path that a setting lies on; that of the learned one for one permuted."""
        kind = LEARNED if setting.kind == PERMUTED else setting.kind
        return Setting(kind, setting.seed).named().rpartition("_")[0]

    def learn(self, kind: str, seed: int) -> Rows:
        """Yields a direction of log θ."""
        direction = jnp.full(self.shape, -0.5, jnp.float32)
        if kind != ONE_BETA:
            options = {"length": self.lengths[0], "steps": self.steps, "batch": 1, "seed": seed}
            facts = FACTS if kind == LEARNED else 0
            direction = learn_direction(self.model, self.learned_on, budget=max(self.budgets), facts=facts, **options)
        return ((kind, seed, *place, f"{value:.5f}") for place, value in np.ndenumerate(np.asarray(direction)))

    def scale(self, kind: str, seed: int) -> Rows:
        """Yields for each budget the largest factor of the direction that keeps it on the passages that judge."""
        direction = self.direction(Setting(kind, seed))

        @cache
        def loss(share: float) -> float:
            return sum(each.mean() for each in self.text_losses(self.judged_on, share * direction, 1)) / len(self.names)

        for budget in sorted(self.budgets):
            share = FURTHEST * largest_share(
                lambda part, budget=budget: loss(FURTHEST * part) <= (1 + budget) * loss(0), HALVINGS
            )
            yield kind, seed, budget, share

    def direction(self, setting: Setting) -> np.ndarray:
        """Returns the direction of a path, read from its file."""
        values = read(self.output / f"theta_{self.source(setting)}.csv")["log_theta"].to_numpy()
        if setting.kind == PERMUTED:
            values = np.random.default_rng(setting.seed).permutation(values)
        return values.astype(np.float32).reshape(self.shape)

    def log_theta(self, setting: Setting) -> np.ndarray:
        """Returns the temperatures of a setting."""
        if setting.kind == SOFTMAX:
            return np.zeros(self.shape, np.float32)
        shares = read(self.output / f"shares_{self.source(setting)}.csv").filter(budget=setting.budget)
        return np.float32(shares["share"].item()) * self.direction(setting)

    def text_losses(self, texts: Sequence[np.ndarray], log_theta: np.ndarray, passages: int) -> list[np.ndarray]:
        """Returns the loss of passages of each text, always the same ones."""
        drawn = [draw_passages(self.model, [text], self.lengths[0], 0, passages, 0) for text in texts]
        parameters, sizes = self.model.parameters, self.model.sizes
        return [np.asarray(passage_losses(parameters, each, jnp.asarray(log_theta), sizes)[0]) for each in drawn]

    def losses(self, setting: Setting) -> Rows:
        """Yields the loss of each passage of the texts of the test."""
        for name, losses in zip(self.names, self.text_losses(self.tested_on, self.log_theta(setting), self.passages)):
            yield from ((*setting, name, passage, f"{loss:.5f}") for passage, loss in enumerate(losses))

    def answers(self, setting: Setting, length: int) -> Rows:
        """Yields the answer to each question, half of them in each text."""
        count, log_theta = self.texts // len(self.names), jnp.asarray(self.log_theta(setting))
        for name, text in zip(self.names, self.tested_on):
            made = make_needles(self.model, text, length, count, 0, FACTS, WORDS, NAMES)
            given = made.tokens[:, : -made.question], made.questions, log_theta, made.candidates
            logs = np.asarray(answer(self.model.parameters, *given, self.model.sizes))
            for place in itertools.product(range(count), range(FACTS)):
                right = made.answers[place]
                cell = (*setting, length, f"{name} {place[0]}", place[1])
                yield *cell, int(logs[place].argmax() == right), f"{-logs[place][right]:.4f}"


def collect(output: Path, directory: Path) -> None:
    """Writes one CSV file of each kind of unit. Raises Refusal where a kind is missing."""
    for kind, columns in COLUMNS.items():
        if not (paths := sorted(output.glob(f"{kind}_*.csv"))):
            raise Refusal(f"{output} has no {kind} to put together: name the --output of a run")
        write_csv(directory / f"{kind}.csv", columns, pl.concat(map(read, paths)).rows())


def study(arguments: Arguments) -> None:
    """Computes the cells that are not there yet, or puts their files together."""
    if arguments.collect:
        return collect(arguments.output, arguments.collect)
    known = arguments.output / "versions.json"
    made = {"model": arguments.model, "texts": [path.name for path in arguments.texts], "quick": arguments.quick}
    before = read_json(known) if known.exists() else made
    if before | made != before:
        raise Refusal(f"{arguments.output} has cells of another model, other texts or --quick: choose another --output")
    units = list(Study(arguments, load(arguments.model)).units())
    write_json(known, versions() | made)
    return compute(units, arguments.output)


if __name__ == "__main__":
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        study(arguments)
