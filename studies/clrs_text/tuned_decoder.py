"""SmolLM2 with narrow matrices beside those of every layer (LoRA): the programs that tune it, test it and read weights.

Products take inputs in bfloat16 and sum in float32; all else is float32.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Adapted, Parameters, Sizes, hidden, product
from softmax_jax.experiment.tasks.task import sequence_key
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import with_numbers
from softmax_jax.normalizers.row import weigh
from studies.clrs_text.regimes import NUMBERS, HeadScale, Regime
from studies.clrs_text.task import ClrsText, Purpose, Texts
from studies.clrs_text.texts import NUMBER, number_of_each
from studies.clrs_text.tokens import SplitTokenizer

ADAPTED, RANK = ("query", "key", "value", "out", "gate", "up", "down"), 16
"""The matrices of a layer that get a narrow product beside them, and how narrow it is."""
AT_ONCE = 5
"""Test sets that are read at once."""
SETS_READ = 25
"""Test sets in which weights are read."""
NUMBERS_RATE = 3.0
"""How much faster the numbers of heads train."""
Numbers = dict[str, Float[Array, "layers heads 1 1"]]
Adapters = dict[str, tuple[Float[Array, "layers rank inputs"], Float[Array, "layers outputs rank"]]]
Trained = tuple[Adapters, Numbers]


class Reader(NamedTuple):
    """A pretrained decoder as `ClrsText.scores` reads it: texts that share a row do not see each other."""

    parameters: Parameters
    sizes: Sizes
    numbers: Numbers

    def __call__(
        self, tokens: Int[Array, "rows width"], mask: Bool[Array, "rows width width"], *_: Any
    ) -> Float[Array, "rows width hidden"]:
        def weigh_seen(logits: Array, visible: Array, numbers: Any, mask: Array) -> Array:
            places, keys = visible.sum(-1) - 1, visible.shape[-1]  # a query sees all up to its own place
            seen = jnp.take(mask, places, 0, mode="fill", fill_value=False)[:, :keys]
            seen = jnp.pad(seen, ((0, 0), (0, keys - seen.shape[1])))
            normalizer = with_numbers(Normalizer(jax.nn.softmax, HeadScale()), numbers)
            return weigh(normalizer, logits, -1, (seen & visible)[None])

        def read_row(tokens: Array, mask: Array) -> Array:
            weigh_row = functools.partial(weigh_seen, mask=mask)
            return hidden(self.parameters, self.sizes, tokens, weigh_row, self.numbers)[0]

        return jax.vmap(read_row)(tokens, mask)

    def scores(self, hidden: Float[Array, "*positions width"]) -> Float[Array, "*positions tokens"]:
        """Returns the score of every token to follow these positions."""
        return product(hidden, self.parameters["embed"], self.sizes.products)


def adapted(fixed: Parameters, adapters: Adapters) -> Parameters:
    """Returns the parameters of a decoder with what was learned beside some matrices of its layers."""
    layer_weights = {name: Adapted(fixed["layers"][name], *learned) for name, learned in adapters.items()}
    return fixed | {"layers": fixed["layers"] | layer_weights}


class State(NamedTuple):
    """All that training carries from step to step."""

    trained: Trained
    optimizer: Any


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.99))


class Programs:
    """The programs of this study: one takes some steps of tuning, one tests some sets, one reads weights."""

    def __init__(self, parameters: Parameters, sizes: Sizes, task: ClrsText, tested: ClrsText):
        layers, _ = parameters["layers"]["attention_norm"].shape
        self.sizes = dataclasses.replace(sizes, products="bfloat16")
        rounded = {name: parameters["layers"][name].astype(self.sizes.products) for name in ADAPTED}
        self.fixed = parameters | {"layers": parameters["layers"] | rounded}
        self.shape = (layers, sizes.heads, 1, 1)
        self.task, self.tested = task, tested
        self.at_training = dataclasses.replace(self.task, batch=AT_ONCE)
        """The texts of the tests at the lengths of training."""

    def start(self) -> State:
        """Returns the state before the first step: what is learned adds nothing yet."""
        random = np.random.default_rng(0)

        def narrow_and_wide(layers: int, outputs: int, inputs: int) -> tuple[Array, Array]:
            narrow = random.normal(0, inputs**-0.5, (layers, RANK, inputs))
            return jnp.asarray(narrow, jnp.float32), jnp.zeros((layers, outputs, RANK), jnp.float32)

        adapters = {name: narrow_and_wide(*self.fixed["layers"][name].shape) for name in ADAPTED}
        trained = adapters, {name: jnp.zeros(self.shape, jnp.float32) for name in NUMBERS}
        return State(trained, OPTIMIZER.init(trained))

    def numbers_of(self, regime: Regime) -> Numbers:
        """Returns the numbers that every head has before tuning."""
        return {name: jnp.full(self.shape, value, jnp.float32) for name, value in zip(NUMBERS, regime[:3])}

    def train(
        self, state: State, seed: int, first: int, rates: Float[np.ndarray, " steps"], regime: Regime
    ) -> tuple[State, float, list[float]]:
        """Returns the state after some steps, the mean loss, and the shares of right answers in their second half."""
        arguments = np.int32(seed), np.int32(first), rates.astype(np.float32), regime.data()[1]
        state, losses, right = self._train(self.fixed, state, *arguments)
        return state, float(losses.mean()), np.asarray(right)[len(rates) // 2 :].mean(0).tolist()

    def right(self, trained: Trained, seed: int, task: ClrsText, sets: int) -> Bool[np.ndarray, "texts sets"]:
        """Returns whether each answer to the test sets of a seed is right to its end."""
        given = self.fixed, *trained, np.int32(seed)
        batches = [self._test(*given, np.int32(step), task) for step in range(sets // AT_ONCE)]
        return np.concatenate(batches).T

    def looks(self, trained: Trained, seed: int) -> Float[np.ndarray, "layers heads"]:
        """Returns the weight that each head gives the number a digit is read from, mean over algorithms.

        It is read in rows that a digit of the answer follows, in texts of the longest length in training.
        """
        weights = []
        for name in self.task.algorithms:
            task = dataclasses.replace(self.task, algorithms=(name,))
            draw = jax.jit(task.test_batch, static_argnums=(1, 2))
            batch = draw(sequence_key(jnp.int32(seed)), task.longest, SETS_READ)
            weights.append(
                np.asarray(self._looks(self.fixed, trained, task, batch, numbers_read(batch, task.decimals)))
            )
        return np.mean(weights, 0)

    @functools.partial(jax.jit, static_argnames="self", donate_argnames="state")
    def _train(
        self, fixed: Parameters, state: State, seed: Array, first: Array, rates: Array, learned: Array
    ) -> tuple[State, Any, Any]:
        lengths = len(self.task.lengths)

        def loss(trained: Trained, batch: Any) -> tuple[Array, Array]:
            scores = self.task.scores(Reader(adapted(fixed, trained[0]), self.sizes, trained[1]), batch, None)
            right = self.task.right(scores, batch).reshape(len(batch.tokens), -1, lengths)
            return self.task.loss(scores, batch), right.mean((0, 2))

        def step(state: State, at: tuple[Array, Array]) -> tuple[State, tuple[Array, Array]]:
            index, rate = at
            batch = self.task.draw_batch(Purpose.TRAINING, seed, index)
            (value, right), (slopes, number_slopes) = jax.value_and_grad(loss, has_aux=True)(state.trained, batch)
            number_slopes = {
                name: jnp.where(learned[place], number_slopes[name], 0) for place, name in enumerate(NUMBERS)
            }
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the integer step
                updates, optimizer = OPTIMIZER.update((slopes, number_slopes), state.optimizer)
            slow, fast = jax.tree.map(lambda update: -rate * update, updates)  # pyright: ignore[reportGeneralTypeIssues]
            fast = {name: NUMBERS_RATE * update for name, update in fast.items()}
            trained: Any = optax.apply_updates(state.trained, (slow, fast))
            return State(trained, optimizer), (value, right)

        steps = first + jnp.arange(len(rates), dtype=jnp.int32)
        state, (losses, right) = jax.lax.scan(step, state, (steps, rates))
        return state, losses, right

    @functools.partial(jax.jit, static_argnames=("self", "task"))
    def _looks(
        self, fixed: Parameters, trained: Trained, task: ClrsText, batch: Texts, read_from: Array
    ) -> Float[Array, "layers heads"]:
        rows = read_from.any(-1).sum(dtype=jnp.float32)

        def weight(weights: Float[Array, "texts heads queries keys"]) -> Float[Array, " heads"]:
            return jnp.where(read_from[:, None], weights, 0).sum((0, 2, 3)) / rows

        read = sj.probe(task.scores, also=weight, where=lambda site: site.use == "attention")
        _, (measured,) = read(Reader(adapted(fixed, trained[0]), self.sizes, trained[1]), batch, None)
        return measured.also

    @functools.partial(jax.jit, static_argnames=("self", "task"))
    def _test(
        self, fixed: Parameters, adapters: Adapters, numbers: Numbers, seed: Array, step: Array, task: ClrsText
    ) -> Bool[Array, "sets texts"]:
        batch = task.draw_batch(Purpose.TEST, seed, step)
        scores = task.scores(Reader(adapted(fixed, adapters), self.sizes, numbers), batch, None)
        return task.right(scores, batch)


def texts_of(task: ClrsText) -> Iterator[tuple[str, int]]:
    """Yields algorithm and length of each text of a test set."""
    return ((name, n) for name in task.algorithms for n in task.lengths)


def numbers_read(batch: Texts, decimals: int) -> Bool[np.ndarray, "texts width width"]:
    """Returns of each row that a digit of an answer follows which tokens are of the number that it is read from.

    The texts are of a `Ranked` algorithm, each in a row of its own. The digit before a point is always 0.
    """
    pieces_of = SplitTokenizer((), decimals).pieces_of
    sets, _, width = batch.tokens.shape
    tokens_read = np.zeros((sets, width, width), bool)
    for tokens, taken, places, answer, weight, rows in zip(*map(np.asarray, batch[:5]), tokens_read):
        start, end = taken[0].argmax(), places[0] + 1
        question = pieces_of(tokens[0, start:end])
        number_of_token = np.array(number_of_each(question))
        order = np.argsort([float(value) for value in NUMBER.findall("".join(question))], kind="stable")
        answer_pieces = pieces_of(answer[weight > 0])
        for place, number, *pieces in zip(
            places, number_of_each(answer_pieces), answer_pieces, [*answer_pieces[1:], ""]
        ):
            if number >= 0 and "." not in pieces:
                rows[place, start:end] = number_of_token == order[number]
    return tokens_read
