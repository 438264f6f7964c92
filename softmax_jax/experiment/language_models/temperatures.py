"""Learns a temperature for each head of a language model, so that hidden facts are found and text costs little more."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from softmax_jax.experiment.language_models.decoder import Logits, Parameters, Sizes, Visible, hidden, losses
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.needles import make_needles
from softmax_jax.refusal import Refusal

BUDGET, STEPS = 0.01, 40
"""The share by which the loss of text may rise, and the steps of learning, unless others are asked for."""
FACTS = 8
"""Facts that a text hides, of which one is asked for."""
RATE, SHRINKAGE = 0.02, 0.01
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


@functools.partial(jax.jit, static_argnames=("sizes", "last"))
def passage_loss(
    parameters: Parameters,
    tokens: Int[Array | np.ndarray, "passages length"],
    log_theta: Each,
    sizes: Sizes,
    last: bool = False,
) -> Float[Array, " passages"]:
    """Returns the mean loss of each passage, in nats a token; with `last` that of its last token alone."""

    def loss(tokens: Int[Array, " length"]) -> Array:
        after, _ = hidden(parameters, sizes, tokens[:-1], by_temperature, log_theta)
        return losses(parameters, after[-1:], tokens[-2:]).mean() if last else losses(parameters, after, tokens).mean()

    return jax.lax.map(loss, tokens)


class Batch(NamedTuple):
    """Passages of a step: text with its loss under softmax, and needles that end with their answer."""

    text: Int[Array | np.ndarray, "*steps passages length"]
    softmax: Float[Array | np.ndarray, "*steps passages"]
    needles: Int[Array | np.ndarray, "*steps passages length"]


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

    def objective(log_theta: Each, multiplier: Array, batch: Batch) -> tuple[Array, Array]:
        text = passage_loss(parameters, batch.text, log_theta, sizes).mean()
        cost, shrinkage = text / batch.softmax.mean() - 1, SHRINKAGE * jnp.mean(log_theta**2)
        if not with_needles:
            return text + shrinkage, cost
        needles = passage_loss(parameters, batch.needles, log_theta, sizes, last=True).mean()
        return needles + multiplier * cost + shrinkage, cost

    def step(state: Any, batch: Batch) -> tuple[Any, None]:
        log_theta, moments, log_multiplier = state
        slope, cost = jax.grad(objective, has_aux=True)(log_theta, jnp.exp(log_multiplier), batch)
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
    batch: int = 4,
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
        batch: Passages of text, and as many with needles, in each step.
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
    if length > model.sizes.context:
        raise Refusal(f"a passage has {length} tokens: the model's context is {model.sizes.context} tokens")
    cuts = [len(tokens) * 3 // 4 for tokens in texts]
    learned_on, held_out = zip(*((tokens[:cut], tokens[cut:]) for tokens, cut in zip(texts, cuts)))
    if (shortest := min(map(len, held_out))) <= length:
        raise Refusal(f"the last quarter of a text has {shortest} tokens, and a passage {length}: give a longer text")
    parameters, sizes = model.parameters, model.sizes
    loss = functools.partial(passage_loss, parameters, sizes=sizes)
    start = jnp.zeros((len(parameters["layers"]["query"]), sizes.heads), jnp.float32)
    draw = functools.partial(_draw, model, length=length, facts=FACTS if with_needles else 0)
    text, questions = draw(learned_on, count=steps * batch, seed=2 * seed)
    by_step = (array.reshape(steps, batch, *array.shape[1:]) for array in (text, loss(text, start), questions))
    batches = Batch(*by_step)
    learned = descend(parameters, batches, jnp.float32(budget), start, sizes, with_needles)
    text, questions = draw(held_out, count=4 * batch, seed=2 * seed + 1)
    plain = float(loss(text, start).mean())
    kept = _within(lambda share: float(loss(text, share * learned).mean()) <= (1 + budget) * plain)
    log_theta = kept * learned
    cost = plain, float(loss(text, log_theta).mean())
    needles = None
    if with_needles:
        before, after = (float(loss(questions, each, last=True).mean()) for each in (start, log_theta))
        needles = before, after
    return Learned(np.exp(np.asarray(log_theta)), cost, needles, kept)


def _draw(
    model: Model, texts: Sequence[Int[np.ndarray, " tokens"]], length: int, facts: int, count: int, seed: int
) -> tuple[Int[np.ndarray, "count length"], Int[np.ndarray, "count length"]]:
    """Returns passages of the texts, and as many that hide facts and end with a question and its answer.

    Without facts the latter are passages too.
    """
    random = np.random.default_rng(seed)
    places = random.integers(len(texts), size=count)
    firsts = [random.integers(len(texts[place]) - length) for place in places]
    passages = np.stack([texts[place][first : first + length] for place, first in zip(places, firsts)])
    if not facts:
        return passages.astype(np.int32), passages.astype(np.int32)
    drawn = [make_needles(model, tokens, length - 1, count, seed, facts) for tokens in texts]
    questions = [
        np.append(drawn[place].tokens[row], drawn[place].candidates[drawn[place].answer[row]])
        for row, place in enumerate(places)
    ]
    return passages.astype(np.int32), np.stack(questions).astype(np.int32)


def _within(fits: Callable[[float], bool]) -> float:
    """Returns the largest share that fits, of 1 and of those that halving an interval from 0 to 1 visits.

    >>> _within(lambda share: share <= 0.3)
    0.296875
    """
    if fits(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
