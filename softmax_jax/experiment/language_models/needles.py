"""Texts with hidden facts, and a question about one of them at the end."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from softmax_jax.experiment.language_models.model import Model
from softmax_jax.refusal import Refusal

WORDS = (
    "apple bridge candle dragon engine forest garden hammer island jacket kitchen ladder mirror needle orange pencil "
    "rabbit silver table umbrella valley window yellow basket castle diamond eagle feather guitar honey ink jungle "
    "king lemon money night ocean paper queen river salt tiger uncle village water winter bread cloud"
)
NAMES = "Anna Peter Maria James Sarah David Laura Simon Julia Martin Alice Robert Helen Thomas Emma Daniel"
CANDIDATES = 32


class Needles(NamedTuple):
    """Texts that end with a question."""

    tokens: Int[np.ndarray, "texts length"]
    place: Int[np.ndarray, " texts"]
    """The position of the answer in the text."""
    answer: Int[np.ndarray, " texts"]
    """The index of the answer among the candidates."""
    candidates: Int[np.ndarray, " candidates"]
    question: int
    """Tokens of the question."""
    told: Bool[np.ndarray, "texts length"]
    """The tokens of the facts and of the question."""
    questions: Int[np.ndarray, "texts facts question"]
    """A question about each fact; that at the end of the text first."""
    answers: Int[np.ndarray, "texts facts"]
    """Their answers, as indices of the candidates."""


def single_tokens(model: Model, words: str) -> list[int]:
    """Returns the tokens of the words that are one token behind a blank."""
    tokens = [model.encode(f" {word}") for word in words.split()]
    return [int(pieces[0]) for pieces in tokens if len(pieces) == 1]


def make_needles(
    model: Model,
    filler: Int[np.ndarray, " tokens"],
    length: int,
    texts: int,
    seed: int,
    facts: int = 1,
    words: str = WORDS,
    names: str = NAMES,
) -> Needles:
    """Draws texts of a length: a stretch of the filler with facts in it, and a question about one of them.

    Each fact has a name of `names` and an answer of `words`, its own. Raises Refusal for a filler that is shorter, for
    facts that do not fit, and for a tokenizer that cuts most words.
    """
    candidates, people = single_tokens(model, words)[:CANDIDATES], single_tokens(model, names)
    if len(candidates) < CANDIDATES or len(people) < facts:
        raise Refusal(
            f"the tokenizer has {len(candidates)} of the words and {len(people)} of the names as one token: "
            f"{CANDIDATES} and {facts} are needed"
        )
    if len(filler) <= length:
        raise Refusal(f"the filler has {len(filler)} tokens: it must have more than {length}; give a longer text")
    start, middle, end = (model.encode(text).tolist() for text in ("\n\nThe secret word of", " is", ".\n\n"))
    random, other = np.random.default_rng((seed, length)), np.random.default_rng((seed, length, facts))
    drawn: list[tuple[np.ndarray, ...]] = []
    question = len(start) + 1 + len(middle)
    room = length - question - facts * (question + 1 + len(end))
    if room < 2:
        raise Refusal(f"{facts} facts and a question do not fit into {length} tokens: make it longer")
    for _ in range(texts):
        answer, name, cut = random.integers(CANDIDATES), random.choice(people), random.integers(len(filler) - length)
        answers = [answer, *other.permutation(np.delete(np.arange(CANDIDATES), answer))[: facts - 1]]
        named = [name, *other.permutation([person for person in people if person != name])[: facts - 1]]
        depths = np.array([random.integers(1, room), *other.integers(1, room, facts - 1)])
        facts_told = np.array(
            [[*start, person, *middle, candidates[word], *end] for person, word in zip(named, answers)]
        )
        order = depths.argsort(kind="stable")
        first, *parts = np.split(filler[cut : cut + room], depths[order])
        pieces = [first, *itertools.chain(*zip(facts_told[order], parts)), facts_told[0, :question]]
        told = [np.full(len(piece), place % 2 == 1) for place, piece in enumerate(pieces)]
        place = depths[0] + question + facts_told.shape[1] * order.tolist().index(0)
        asked = facts_told[:, :question], np.array(answers)
        drawn.append((np.concatenate(pieces), np.array(place), np.concatenate(told), *asked))
    tokens, places, told, questions, answers = (np.stack(each) for each in zip(*drawn))
    return Needles(
        tokens.astype(np.int32),
        places.astype(np.int32),
        answers[:, 0].astype(np.int32),
        np.array(candidates, np.int32),
        question,
        told,
        questions.astype(np.int32),
        answers.astype(np.int32),
    )
