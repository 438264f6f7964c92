"""What does it cost to find hidden facts? One θ for each head of SmolLM2-135M, at budgets of 0 to 4 % of loss on text.

    python -m studies.texts texts
    python -m studies.front --texts texts/prose.txt texts/code.txt --output results/front
    python -m studies.front --output results/front --collect docs/data/front

From half of each text a direction of log θ is learned for each seed, once, under the largest budget. For each budget it
is scaled: the largest factor is sought that keeps the budget on other passages. Then facts hidden in a third part of
the texts, with other names and words, are asked for, and the loss of text is measured there. Placebos are the same θ
permuted over the heads, θ learned from text without facts, and one β for all heads.

Each cell leaves a CSV file, and one that is there is not computed again. All cells take two to three hours of processor
time; the first quarter of an hour gives one seed at 512 tokens. `--quick` takes a few minutes.
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
from jaxtyping import Array, Float, Int

from softmax_jax.experiment.commands.parse import each_once, parse, within
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.language_models import temperatures
from softmax_jax.experiment.language_models.decoder import Sizes, scores
from softmax_jax.experiment.language_models.loading import Model, load
from softmax_jax.experiment.language_models.needles import make_needles
from softmax_jax.experiment.measures.units import Unit, collect, compute, read, settings_file, slug
from softmax_jax.files import read_text, versions, write_json
from studies.front_tables import FROM_TEXT, LEARNED, ONE_BETA, PERMUTED, SOFTMAX

BUDGETS = (0.01, 0.04, 0.0025, 0.02, 0.005, 0.0)
"""Shares by which the loss of text may rise, in the order of the work."""
FURTHEST = 2.0
"""The largest factor of a learned log θ that is tried."""
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

    def path(self) -> str:
        """Returns the name of the path that it lies on; that of the learned one for one permuted."""
        return slug(f"{LEARNED if self.kind == PERMUTED else self.kind} {self.seed}")


@partial(jax.jit, static_argnames=("sizes",))
def answer(
    parameters: Any,
    tokens: Int[Array, "texts length"],
    questions: Int[Array, "texts facts question"],
    log_theta: temperatures.Each,
    candidates: Int[Array, " candidates"],
    sizes: Sizes,
) -> Float[Array, "texts facts candidates"]:
    """Returns the log-probability of each candidate among them after each question, which sees its text alone."""

    def answer_text(pair: tuple[Array, Array]) -> Array:
        _, asked = temperatures.read_and_ask(parameters, sizes, *pair, log_theta)
        return jax.nn.log_softmax(scores(parameters, asked)[:, candidates])

    return jax.lax.map(answer_text, (tokens, questions))


class Study:
    """The cells of the study of one model."""

    def __init__(self, arguments: Arguments, model: Model):
        self.output, self.model, self.seeds = arguments.output, model, 1 if arguments.quick else arguments.seeds
        self.shape = (len(model.parameters["layers"]["query"]), model.sizes.heads)
        texts = {path.stem: model.encode(read_text(path)) for path in arguments.texts}
        parts = [np.split(tokens, [len(tokens) // 2, len(tokens) * 5 // 8]) for tokens in texts.values()]
        self.names, (self.learned_on, self.judged_on, self.tested_on) = list(texts), zip(*parts)
        quick = arguments.quick
        self.lengths, self.budgets = ((256,), BUDGETS[:2]) if quick else ((512, 2048, 4096), BUDGETS)
        self.texts, self.passages, self.steps = (2, 1, 2) if quick else (8, 2, 16)
        """Texts with facts of each length, passages of each text, and steps of learning, of one passage each."""

    def units(self) -> Iterator[Unit]:
        """Yields all cells, the most important first."""
        first, *longer = self.lengths
        yield from self.cells(Setting(SOFTMAX), first)
        others = (Setting(LEARNED, seed) for seed in range(1, self.seeds))
        for path in (Setting(LEARNED), Setting(ONE_BETA), *others, Setting(FROM_TEXT)):
            yield Unit(f"theta_{path.path()}", COLUMNS["theta"], partial(self.learn, path))
            yield Unit(f"shares_{path.path()}", COLUMNS["shares"], partial(self.scale, path))
            kinds = (LEARNED, PERMUTED) if path.kind == LEARNED else (path.kind,)
            for budget, kind in itertools.product(self.budgets, kinds):
                yield from self.cells(Setting(kind, path.seed, budget), first)
        for length in longer:
            for setting in (Setting(SOFTMAX), *(Setting(LEARNED, 0, budget) for budget in self.budgets)):
                yield from self.cells(setting, length)
        placebos = [Setting(kind, 0, BUDGETS[0]) for kind in (PERMUTED, ONE_BETA, FROM_TEXT)]
        for setting in (*placebos, *(Setting(LEARNED, seed, BUDGETS[0]) for seed in range(1, self.seeds))):
            for length in longer:  # at one budget, as a cell takes minutes
                yield from self.cells(setting, length)

    def cells(self, setting: Setting, length: int) -> Iterator[Unit]:
        """Yields a unit of questions in texts of a length, and at the first length one of the loss of text."""
        name = slug(f"{setting.kind} {setting.seed} {setting.budget:g}")
        yield Unit(f"answers_{length}_{name}", COLUMNS["answers"], partial(self.answers, setting, length))
        if length == self.lengths[0]:
            yield Unit(f"losses_{name}", COLUMNS["losses"], partial(self.losses, setting))

    def learn(self, path: Setting) -> Rows:
        """Yields a direction of log θ."""
        direction = jnp.full(self.shape, -0.5, jnp.float32)
        if path.kind != ONE_BETA:
            facts, most = temperatures.FACTS if path.kind == LEARNED else 0, max(self.budgets)
            learn = partial(temperatures.learn_direction, self.model, self.learned_on, budget=most, facts=facts)
            direction = learn(length=self.lengths[0], steps=self.steps, batch=1, seed=path.seed)
        return ((*path[:2], *place, f"{value:.5f}") for place, value in np.ndenumerate(np.asarray(direction)))

    def scale(self, path: Setting) -> Rows:
        """Yields for each budget the largest factor of the direction that keeps it on the passages that judge."""
        direction = self.direction(path)

        @cache
        def loss(part: float) -> float:
            return float(np.mean(self.text_losses(self.judged_on, FURTHEST * part * direction, 1)))

        for budget in sorted(self.budgets):
            most = (1 + budget) * loss(0.0)
            kept = temperatures.largest_share(lambda part, most=most: loss(part) <= most)
            yield *path[:2], budget, FURTHEST * kept

    def direction(self, setting: Setting) -> np.ndarray:
        """Returns the direction of a path, read from its file."""
        values = read(self.output / f"theta_{setting.path()}.csv")["log_theta"].to_numpy()
        if setting.kind == PERMUTED:
            values = np.random.default_rng(setting.seed).permutation(values)
        return values.astype(np.float32).reshape(self.shape)

    def log_theta(self, setting: Setting) -> np.ndarray:
        """Returns the temperatures of a setting."""
        if setting.kind == SOFTMAX:
            return np.zeros(self.shape, np.float32)
        shares = read(self.output / f"shares_{setting.path()}.csv").filter(budget=setting.budget)
        return np.float32(shares["share"].item()) * self.direction(setting)

    def text_losses(self, texts: Sequence[np.ndarray], log_theta: np.ndarray, passages: int) -> list[np.ndarray]:
        """Returns the loss of passages of each text, always the same ones."""
        loss = partial(temperatures.passage_losses, self.model.parameters, sizes=self.model.sizes)
        draw = partial(temperatures.draw_passages, self.model, length=self.lengths[0], facts=0, count=passages, seed=0)
        return [np.asarray(loss(draw([text]), jnp.asarray(log_theta))[0]) for text in texts]

    def losses(self, setting: Setting) -> Rows:
        """Yields the loss of each passage of the texts of the test."""
        for name, losses in zip(self.names, self.text_losses(self.tested_on, self.log_theta(setting), self.passages)):
            yield from ((*setting, name, passage, f"{loss:.5f}") for passage, loss in enumerate(losses))

    def answers(self, setting: Setting, length: int) -> Rows:
        """Yields the answer to each question, half of them in each text."""
        count, log_theta = self.texts // len(self.names), jnp.asarray(self.log_theta(setting))
        for name, text in zip(self.names, self.tested_on):
            made = make_needles(self.model, text, length, count, 0, temperatures.FACTS, WORDS, NAMES)
            given = made.tokens[:, : -made.question], made.questions, log_theta, made.candidates
            logs = np.asarray(answer(self.model.parameters, *given, self.model.sizes))
            for place in itertools.product(range(count), range(temperatures.FACTS)):
                right = made.answers[place]
                cell = (*setting, length, f"{name} {place[0]}", place[1])
                yield *cell, int(logs[place].argmax() == right), f"{-logs[place][right]:.4f}"


def study(arguments: Arguments) -> None:
    """Computes the cells that are not there yet, or puts their files together."""
    if arguments.collect:
        collect(arguments.output, arguments.collect, COLUMNS)
        return None
    made = {"model": arguments.model, "texts": [path.name for path in arguments.texts], "quick": arguments.quick}
    known = settings_file(arguments.output, made, "cells of another model, other texts or --quick")
    write_json(known, versions() | made)
    return compute(list(Study(arguments, load(arguments.model)).units()), arguments.output)


if __name__ == "__main__":
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        study(arguments)
