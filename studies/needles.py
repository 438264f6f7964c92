"""The oracle of texts with facts: it shows what would help where the question at their end is answered wrong.

The rows of the question are weighed once more with what only an oracle knows, the place of the answer: its logit and
that of the row's top are exchanged, the row gets the temperature that gives the answer most weight, or both.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Logits, Parameters, Sizes, Visible, hidden, scores
from studies.head_numbers import HeadNumbers, by_numbers, scaled

GRID = tuple(2.0 ** (power / 2) for power in range(-4, 11))
"""Inverse temperatures that the best of a row is chosen from."""


class Oracle(NamedTuple):
    """Changes of the rows of the question, one number for each head of a layer."""

    rank: Float[Array, "*layers heads"]
    """1 where the answer and the row's top exchange their logits."""
    sharp: Float[Array, "*layers heads"]
    """1 where the row gets the temperature that gives the answer most weight."""
    last: Float[Array, "*layers heads"]


def weigh_with_oracle(
    logits: Logits, visible: Visible, given: tuple[HeadNumbers, Oracle, Bool[Array, "1 #queries keys"]]
) -> Logits:
    """Weighs the rows of a question, or of several, with the numbers of each head and the changes of the oracle.

    The mask names what is asked for. Where that is several keys, rank gives each of them the row's largest logit, and
    the temperature is the best for the largest of them.
    """
    numbers, oracle, needle = given
    z = jnp.where(visible[None], scaled(logits, visible, numbers), -jnp.inf)
    top = jnp.arange(z.shape[-1], dtype=jnp.int32)[None, None] == jnp.argmax(z, -1, keepdims=True)
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
        needle = jnp.arange(len(tokens), dtype=jnp.int32) == place
        needles = jnp.broadcast_to(needle, (len(numbers.beta), 1, 1, len(tokens)))

        def ask_oracle(oracle: Oracle) -> Array:
            given = (numbers, oracle, needles)
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
