"""Texts with facts and a question at the end, and the oracle that shows what would help where it is answered wrong.

The rows of the question are weighed once more with what only an oracle knows, the place of the answer: its logit and
that of the row's top are exchanged, the row gets the temperature that gives the answer most weight, or both.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Logits, Parameters, Sizes, Visible, hidden, scores
from softmax_jax.experiment.language_models.loading import Model
from softmax_jax.refusal import Refusal
from studies.head_numbers import HeadNumbers, by_numbers, scaled

WORDS = (
    "apple bridge candle dragon engine forest garden hammer island jacket kitchen ladder mirror needle orange pencil "
    "rabbit silver table umbrella valley window yellow basket castle diamond eagle feather guitar honey ink jungle "
    "king lemon money night ocean paper queen river salt tiger uncle village water winter bread cloud"
)
NAMES = "Anna Peter Maria James Sarah David Laura Simon Julia Martin Alice Robert Helen Thomas Emma Daniel"
CANDIDATES = 32
GRID = tuple(2.0 ** (power / 2) for power in range(-4, 11))
"""Inverse temperatures that the best of a row is chosen from."""


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


class Oracle(NamedTuple):
    """Changes of the rows of the question, one number for each head of a layer."""

    rank: Float[Array, "*layers heads"]
    """1 where the answer and the row's top exchange their logits."""
    sharp: Float[Array, "*layers heads"]
    """1 where the row gets the temperature that gives the answer most weight."""
    last: Float[Array, "*layers heads"]


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
        named = [name, *other.permutation([one for one in names if one != name])[: facts - 1]]
        depths = np.array([random.integers(1, room), *other.integers(1, room, facts - 1)])
        facts_told = np.array([[*start, one, *middle, candidates[word], *end] for one, word in zip(named, words)])
        order = depths.argsort(kind="stable")
        first, *parts = np.split(filler[cut : cut + room], depths[order])
        between = itertools.chain(*zip(facts_told[order], parts))
        tokens.append(np.concatenate([first, *between, facts_told[0, :question]]))
        places.append(depths[0] + question + facts_told.shape[1] * order.tolist().index(0))
        answers.append(answer)
    arrays = [np.asarray(one, np.int32) for one in (tokens, places, answers, candidates)]
    return Needles(*arrays[:3], candidates=arrays[3], question=question)


def weigh_with_oracle(logits: Logits, visible: Visible, given: tuple[HeadNumbers, Oracle, Int[Array, ""]]) -> Logits:
    """Weighs the rows of a question with the numbers of each head and the changes of the oracle."""
    numbers, oracle, place = given
    z = jnp.where(visible[None], scaled(logits, visible, numbers), -jnp.inf)
    at = jnp.arange(z.shape[-1], dtype=jnp.int32)[None, None]
    needle, top = at == place, at == jnp.argmax(z, -1, keepdims=True)
    answer_row, most = (jnp.max(jnp.where(chosen, z, -jnp.inf), -1, keepdims=True) for chosen in (needle, top))
    last = jnp.arange(z.shape[1]) == z.shape[1] - 1
    rank, sharp, only = (flag[:, None, None] > 0.5 for flag in oracle)
    here = last[None, :, None] | ~only
    z = jnp.where(rank & here, jnp.where(needle, most, jnp.where(top, answer_row, z)), z)
    answer_logit = jnp.where(rank & here, most, answer_row)

    def log_weight(beta: Float[Array, ""]) -> Float[Array, "heads queries 1"]:
        return beta * answer_logit - jax.nn.logsumexp(beta * z, -1, keepdims=True)

    grid = jnp.asarray(GRID, jnp.float32)
    best = grid[jnp.argmax(jax.lax.map(log_weight, grid), 0)]
    return jax.nn.softmax(jnp.where(sharp & here, best, 1) * z, where=visible[None])


@functools.partial(jax.jit, static_argnames=("question", "sizes", "together"))
def answer(
    parameters: Parameters,
    tokens: Int[Array, "texts length"],
    places: Int[Array, " texts"],
    numbers: HeadNumbers,
    oracles: Oracle,
    *,
    candidates: Int[Array, " candidates"],
    question: int,
    sizes: Sizes,
    together: int = 1,
) -> tuple[Float[Array, "texts oracles candidates"], Float[Array, "texts layers heads"]]:
    """Returns the log-probability of each candidate among them, and the answer's weight in the question's last row.

    `oracles` has an axis before the layers; the text is computed once for all.
    """

    def answer_text(text_and_place: tuple[Int[Array, " length"], Int[Array, ""]]) -> tuple[Array, Array]:
        tokens, place = text_and_place
        _, before = hidden(parameters, sizes, tokens[:-question], by_numbers, numbers)
        question_tokens = tokens[-question:]

        def ask_oracle(oracle: Oracle) -> Array:
            given = (numbers, oracle, jnp.broadcast_to(place, len(numbers.beta)))
            after, _ = hidden(parameters, sizes, question_tokens, weigh_with_oracle, given, before)
            return jax.nn.log_softmax(scores(parameters, after[-1])[candidates])

        plain = sj.probe(
            lambda: hidden(parameters, sizes, question_tokens, by_numbers, numbers, before),
            also=lambda weights: weights[:, -1],
            where=lambda site: site.use == "attention",  # the entropy of adaptive temperature is another
        )
        _, (rows,) = plain()
        return jax.vmap(ask_oracle)(oracles), rows.also[..., place]

    return jax.lax.map(answer_text, (tokens, places), batch_size=together)
