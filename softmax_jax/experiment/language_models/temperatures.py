"""Learns a temperature for each head of a language model, so that hidden facts are found and text costs little more."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.experiment.language_models.decoder import Logits, Parameters, Sizes, Visible, hidden, losses, scores
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.needles import make_needles
from softmax_jax.refusal import Refusal

BUDGET, STEPS = 0.01, 20
"""The share by which the loss of text may rise, and the steps of learning, unless others are asked for."""
FACTS = 8
"""Facts that a text hides, each of which is asked for."""
RATE, SHRINKAGE = 0.04, 0.01
"""The learning rate of Adam for log θ, and the factor of the mean square of log θ in the loss."""
MULTIPLIER, ASCENT, TOLERANCE = 10.0, 0.2, 0.01
"""The multiplier that the budget starts with, in nats of needles for a share of the text's loss; the most that its
logarithm moves in a step; and the excess of that share at which it moves so far."""
HALVINGS = 6
"""Steps of the search for the share of log θ that keeps the budget."""
Each = Float[Array, "layers heads"]


class Learned(NamedTuple):
    """Temperatures, and losses in nats a token, under softmax and under them, of passages that they did not learn on.

    On these passages of text the share that is kept was chosen.
    """

    theta: Float[np.ndarray, "layers heads"]
    text: tuple[float, float]
    needles: tuple[float, float] | None
    """Of the answers to questions; None if there are none."""
    kept: float
    """The share of the learned log θ that the budget allowed."""


def by_temperature(logits: Logits, visible: Visible, log_theta: Float[Array, " heads"]) -> Logits:
    """Weighs a block of rows by softmax(z / θ), with a θ for each head."""
    return jax.nn.softmax(logits * jnp.exp(-log_theta)[:, None, None], where=visible[None])


def read_and_ask(
    parameters: Parameters,
    sizes: Sizes,
    tokens: Int[Array, " length"],
    questions: Int[Array, "questions asked"],
    log_theta: Each,
) -> tuple[Float[Array, "length width"], Float[Array, "questions width"]]:
    """Returns the hidden states of a text, and that at the end of each question about it.

    The keys and values of the text are computed once. Each question follows the text alone, and sees no other one.
    """
    text, before = hidden(parameters, sizes, tokens, by_temperature, log_theta)

    def ask(question: Int[Array, " asked"]) -> Float[Array, " width"]:
        return hidden(parameters, sizes, question, by_temperature, log_theta, before)[0][-1]

    return text, jax.vmap(ask)(questions)


class Batch(NamedTuple):
    """Passages that may hide facts, and questions about these."""

    tokens: Int[Array, "*steps passages length"]
    counted: Bool[Array, "*steps passages length"]
    """The tokens whose loss is that of text: those of no fact."""
    questions: Int[Array, "*steps passages questions asked"]
    """Each ends with its answer."""


@functools.partial(jax.jit, static_argnames=("sizes",))
def passage_losses(
    parameters: Parameters, batch: Batch, log_theta: Each, sizes: Sizes
) -> tuple[Float[Array, " passages"], Float[Array, "passages questions"]]:
    """Returns the mean loss of the text of each passage, and that of the answer to each question, in nats a token."""

    def of_passage(passage: Batch) -> tuple[Array, Array]:
        read, asked = read_and_ask(parameters, sizes, passage.tokens, passage.questions[:, :-1], log_theta)
        text = jnp.mean(losses(parameters, read, passage.tokens), where=passage.counted[1:])
        logits, answers = scores(parameters, asked), passage.questions[:, -1]
        return text, jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, answers[:, None], -1)[:, 0]

    return jax.lax.map(of_passage, batch)


@functools.partial(jax.jit, static_argnames=("sizes", "with_needles"))
def descend(
    parameters: Parameters, batches: Batch, budget: Float[Array, ""], start: Each, sizes: Sizes, with_needles: bool
) -> Each:
    r"""Returns log θ after a step of Adam for each batch, with a multiplier μ for the budget.

    $$\min_\theta \max_\mu\; L_\text{needles} + \mu \left(\frac{L_\text{text}(\theta)}{L_\text{text}(1)} - 1 -
    \text{budget}\right) + \lambda\, \overline{\log^2\theta}$$

    The multiplier rises while text costs more than the budget, and falls while it costs less. A head of which the data
    say nothing has no slope but that of the last term, and keeps θ = 1. Without needles the loss is that of the text.
    """
    optimizer = optax.adam(RATE)

    def objective(log_theta: Each, multiplier: Array, batch: Batch, softmax: Array) -> tuple[Array, Array]:
        text, needles = passage_losses(parameters, batch, log_theta, sizes)
        cost, shrinkage = text.mean() / softmax - 1, SHRINKAGE * jnp.mean(log_theta**2)
        return (needles.mean() + multiplier * cost if with_needles else text.mean()) + shrinkage, cost

    def step(state: Any, batch: Batch) -> tuple[Any, None]:
        log_theta, moments, log_multiplier = state
        softmax = passage_losses(parameters, batch, start, sizes)[0].mean()
        slope, cost = jax.grad(objective, has_aux=True)(log_theta, jnp.exp(log_multiplier), batch, softmax)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the integer step
            updates, moments = optimizer.update(slope, moments)
        excess = jnp.clip((cost - budget) / TOLERANCE, -1, 1)
        return (optax.apply_updates(log_theta, updates), moments, log_multiplier + ASCENT * excess), None

    state = start, optimizer.init(start), jnp.log(jnp.float32(MULTIPLIER))
    return jax.lax.scan(step, state, batches)[0][0]


def learn_temperatures(
    model: Model,
    texts: Sequence[Int[np.ndarray, " tokens"]],
    *,
    budget: float = BUDGET,
    with_needles: bool = True,
    length: int = 512,
    steps: int = STEPS,
    batch: int = 2,
    seed: int = 0,
) -> Learned:
    """Learns θ for each layer and query head from texts and from facts hidden in them, at a cost within a budget.

    Arguments:
        model: A model of this decoder.
        texts: Tokens of each text. The last quarter is held out, and judges the cost.
        budget: The share by which the loss of the held-out text may rise: 0.01 for one percent.
        with_needles: Whether to learn from facts hidden in the texts too; else from the texts alone.
        length: Tokens of a passage.
        steps: Steps of Adam.
        batch: Passages of a step, each with a question about each of its facts.
        seed: Seed of the passages, the facts and the questions.

    Returns:
        The temperatures. Where the cost of those learned is beyond the budget, the largest share of log θ that keeps it
        is sought by bisection, so that a budget of 0 that nothing meets gives θ = 1.

    Raises:
        Refusal: for a text whose last quarter is no longer than a passage, for passages beyond the model's context, and
            as `make_needles`.

    Example:
        >>> learned = learn_temperatures(load("smollm2"), [tokens], budget=0.01)  # doctest: +SKIP
        >>> bake("model.gguf", learned.theta, "sharper.gguf")  # doctest: +SKIP
    """
    cuts = [len(tokens) * 3 // 4 for tokens in texts]
    learned_on, held_out = zip(*((tokens[:cut], tokens[cut:]) for tokens, cut in zip(texts, cuts)))
    if (shortest := min(map(len, held_out))) <= length:
        raise Refusal(f"the last quarter of a text has {shortest} tokens, and a passage {length}: give a longer text")
    shown = {"length": length, "facts": FACTS if with_needles else 0}
    learned = learn_direction(model, learned_on, budget=budget, steps=steps, batch=batch, seed=2 * seed, **shown)
    text, needles = (
        draw_passages(model, held_out, length, facts, 4 * batch, 2 * seed + 1) for facts in (0, shown["facts"])
    )
    loss = functools.partial(passage_losses, model.parameters, sizes=model.sizes)
    start = jnp.zeros_like(learned)
    plain = float(loss(text, start)[0].mean())
    kept = largest_share(lambda share: float(loss(text, share * learned)[0].mean()) <= (1 + budget) * plain)
    log_theta = kept * learned
    cost, answers = (plain, float(loss(text, log_theta)[0].mean())), None
    if with_needles:
        before, after = (float(loss(needles, each)[1].mean()) for each in (start, log_theta))
        answers = before, after
    return Learned(np.exp(np.asarray(log_theta)), cost, answers, kept)


def learn_direction(
    model: Model,
    texts: Sequence[Int[np.ndarray, " tokens"]],
    *,
    budget: float,
    length: int,
    facts: int,
    steps: int,
    batch: int,
    seed: int,
) -> Each:
    """Returns log θ as learned from texts, whose cost on other texts may be beyond the budget.

    Without facts it is learned from the texts alone. Raises Refusal as `draw_passages`.
    """
    drawn = draw_passages(model, texts, length, facts, steps * batch, seed)
    batches = Batch(*(array.reshape(steps, batch, *array.shape[1:]) for array in drawn))
    start = jnp.zeros((len(model.parameters["layers"]["query"]), model.sizes.heads), jnp.float32)
    return descend(model.parameters, batches, jnp.float32(budget), start, model.sizes, facts > 0)


def draw_passages(
    model: Model, texts: Sequence[Int[np.ndarray, " tokens"]], length: int, facts: int, count: int, seed: int
) -> Batch:
    """Draws passages of the texts. With facts, these are hidden in them, and each is asked for.

    A passage has as many tokens with one question at its end. Raises Refusal for passages beyond the model's context,
    and as `make_needles`.
    """
    if length > model.sizes.context:
        raise Refusal(f"a passage has {length} tokens: the model's context is {model.sizes.context} tokens")
    random = np.random.default_rng(seed)
    places = random.integers(len(texts), size=count)
    if not facts:
        firsts = [random.integers(len(texts[place]) - length) for place in places]
        passages = np.stack([texts[place][first : first + length] for place, first in zip(places, firsts)])
        return _batch(passages, np.ones_like(passages, bool), np.zeros((count, 0, 2), np.int32))
    each = [make_needles(model, tokens, length, count, seed, facts) for tokens in texts]
    question, candidates = each[0].question, each[0].candidates
    tokens, told, questions, answers = (
        np.stack([drawn[place][row] for row, place in enumerate(places)])
        for drawn in zip(*((one.tokens, one.told, one.questions, one.answers) for one in each))
    )
    asked = np.concatenate([questions, candidates[answers][..., None]], -1)
    return _batch(tokens[:, :-question], ~told[:, :-question], asked)


def _batch(tokens: np.ndarray, counted: np.ndarray, questions: np.ndarray) -> Batch:
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(counted), jnp.asarray(questions, jnp.int32))


def largest_share(fits: Callable[[float], bool], halvings: int = HALVINGS) -> float:
    """Returns the largest share that fits, of 1 and of those that halving an interval from 0 to 1 visits.

    >>> largest_share(lambda share: share <= 0.3)
    0.296875
    """
    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
