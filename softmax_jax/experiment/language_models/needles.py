"""Texts with hidden facts, and a question about one of them at the end."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

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


def single_tokens(model: Model, words: str) -> list[int]:
    """Returns the tokens of the words that are one token behind a blank."""
    tokens = [model.encode(f" {word}") for word in words.split()]
    return [int(pieces[0]) for pieces in tokens if len(pieces) == 1]


def make_needles(
    model: Model, filler: Int[np.ndarray, " tokens"], length: int, texts: int, seed: int, facts: int = 1
) -> Needles:
    """Draws texts of a length: a stretch of the filler with facts in it, and a question about one of them.

    Each fact has a name and an answer of its own. Raises Refusal for a filler that is shorter, for facts that do not
    fit, and for a tokenizer that cuts most words.
    """
    candidates, names = single_tokens(model, WORDS)[:CANDIDATES], single_tokens(model, NAMES)
    if len(candidates) < CANDIDATES or len(names) < facts:
        raise Refusal(
            f"the tokenizer has {len(candidates)} of the words and {len(names)} of the names as one token: "
            f"{CANDIDATES} and {facts} are needed"
        )
    if len(filler) <= length:
        raise Refusal(f"the filler has {len(filler)} tokens: it must have more than {length}; give a longer text")
    start, middle, end = (model.encode(text).tolist() for text in ("\n\nThe secret word of", " is", ".\n\n"))
    random, other = np.random.default_rng((seed, length)), np.random.default_rng((seed, length, facts))
    tokens, places, answers = [], [], []
    question = len(start) + 1 + len(middle)
    room = length - question - facts * (question + 1 + len(end))
    if room < 2:
        raise Refusal(f"{facts} facts and a question do not fit into {length} tokens: make it longer")
    for _ in range(texts):
        answer, name, cut = random.integers(CANDIDATES), random.choice(names), random.integers(len(filler) - length)
        words = [answer, *other.permutation(np.delete(np.arange(CANDIDATES), answer))[: facts - 1]]
        named = [name, *other.permutation([another for another in names if another != name])[: facts - 1]]
        depths = np.array([random.integers(1, room), *other.integers(1, room, facts - 1)])
        facts_told = np.array([[*start, owner, *middle, candidates[word], *end] for owner, word in zip(named, words)])
        order = depths.argsort(kind="stable")
        first, *parts = np.split(filler[cut : cut + room], depths[order])
        between = itertools.chain(*zip(facts_told[order], parts))
        tokens.append(np.concatenate([first, *between, facts_told[0, :question]]))
        places.append(depths[0] + question + facts_told.shape[1] * order.tolist().index(0))
        answers.append(answer)
    arrays = [np.asarray(column, np.int32) for column in (tokens, places, answers, candidates)]
    return Needles(*arrays[:3], candidates=arrays[3], question=question)
