"""Models that are asked for something among many: their answers and what their heads do, with rows of heads changed."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Cache, Logits, Parameters, Sizes, Visible, hidden, scores
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.needles import CANDIDATES, single_tokens
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval import CODE, Keys, MultiQuery, Retrieval
from softmax_jax.experiment.tasks.sequences import Sequences
from softmax_jax.experiment.training.run import build_model
from softmax_jax.refusal import Refusal
from studies.clrs_text.task import ClrsText
from studies.head_numbers import HeadNumbers, by_numbers, head_numbers
from studies.needles import Oracle, weigh_with_oracle

FACTS = 8
"""Facts that a text hides, each of which is asked for."""
NAMES_APART = 3
"""First names, and last ones, of facts that are near copies: every fact shares its first name with others."""
SHARP = 2.0
"""The factor of a sharpened row's logits."""
HELPS = ("rank", "other_rank", "sharp", "permuted", "temperature", "law")
"""Changes of the rows of some heads: what is asked for, or another item, gets the row's largest logit; logits are
doubled, in these heads or in as many that are drawn by lot; the row gets the temperature that is best for what is asked
for; β grows by the law. Those of another item and of heads drawn by lot are placebos."""
Each = Float[np.ndarray, "layers heads"]


class Change(NamedTuple):
    """A change of the rows that ask; numbers for each head of all layers."""

    numbers: HeadNumbers
    oracle: Oracle
    other: Float[Array, ""]
    """1 where the oracle is told the place of another item."""

    def weigh(self, logits: Logits, visible: Visible, items: "Items", layer: int) -> Logits:
        """Returns the weights of a layer's rows that ask."""
        layer_numbers = jax.tree.map(lambda array: array[layer], (self.numbers, self.oracle))
        needles = jnp.where(self.other > 0.5, items.others, items.needles)[None]
        return weigh_with_oracle(logits, visible, (*layer_numbers, needles))


class Asked(NamedTuple):
    """What a model answers under each change, and what its heads do in the rows that ask, unchanged."""

    right: Bool[Array, "changes questions"]
    largest: Float[Array, "questions layers heads"]
    """The largest weight of the row; the sum of its k largest where k items are asked for."""
    weight: Float[Array, "questions layers heads"]
    """The weight of what is asked for, the sum over its items."""
    write: Float[Array, "questions layers heads"]
    """What the head writes of the answer: u · W_O v · weight."""


def law_numbers(mask: Each, reference: int) -> HeadNumbers:
    """Returns SSMax in the masked heads: β = log n / log of the reference, and 1 below it."""
    law = {"beta": 0.0, "s": 1 / math.log(reference), "low": 1.0}
    both = zip(head_numbers(mask.shape), head_numbers(mask.shape, **law))
    return HeadNumbers(*(jnp.where(mask > 0.5, own, plain) for plain, own in both))


def change(help_name: str, mask: Each, reference: int) -> Change:
    """Returns the change of a name in the masked heads; `none` changes nothing."""
    zeros, numbers = jnp.zeros(mask.shape, jnp.float32), head_numbers(mask.shape)
    oracle, on, other = Oracle(zeros, zeros, zeros), jnp.asarray(mask, jnp.float32), 0.0
    match help_name:
        case "rank":
            oracle = oracle._replace(rank=on)
        case "other_rank":
            oracle, other = oracle._replace(rank=on), 1.0
        case "sharp":
            numbers = numbers._replace(beta=1 + (SHARP - 1) * on)
        case "permuted":
            drawn = np.random.default_rng(int(mask.sum())).permutation(mask.ravel()).reshape(mask.shape)
            return change("sharp", drawn, reference)
        case "temperature":
            oracle = oracle._replace(sharp=on)
        case "law":
            numbers = law_numbers(mask, reference)
    return Change(numbers, oracle, jnp.float32(other))


def written(
    direction: Float[Array, " width"], out: Float[Array, "heads size width"], value: Float[Array, "heads size"]
) -> Float[Array, " heads"]:
    """Returns u · W_O v for each head: how far it moves the logit of the answer for each unit of weight."""
    return jnp.einsum("w,hsw,hs->h", direction, out, value, precision="highest")


class Facts(NamedTuple):
    """Texts with facts, without a question at their end."""

    tokens: Int[Array, "*texts length"]
    questions: Int[Array, "*texts facts asked"]
    places: Int[Array, "*texts facts"]
    """The positions of the answers."""
    answers: Int[Array, "*texts facts"]
    """Indices of the candidates."""
    candidates: Int[Array, "*texts candidates"]


def draw_facts(
    model: Model, filler: Int[np.ndarray, " tokens"], length: int, seed: int, near: bool, words: str, names: str
) -> Facts:
    """Draws a text: a stretch of the filler with facts of people with two names, each of whom has a secret word.

    The names of a fact are its own, or, of near copies, shared by two or three facts each, in other pairs. Raises
    Refusal for a filler that is shorter, and for a tokenizer that cuts most words.
    """
    candidates, people = single_tokens(model, words)[:CANDIDATES], single_tokens(model, names)
    if len(candidates) < CANDIDATES or len(people) < 2 * FACTS:
        raise Refusal(f"the tokenizer has {len(candidates)} of the words and {len(people)} names: choose another model")
    if len(filler) <= length:
        raise Refusal(f"the filler has {len(filler)} tokens: it must have more than {length}; give a longer text")
    start, middle, end = (model.encode(text).tolist() for text in ("\n\nThe secret word of", " is", ".\n\n"))
    random = np.random.default_rng((seed, length, near))
    answers, people = random.permutation(CANDIDATES)[:FACTS], random.permutation(people)
    pairs = people.reshape(-1, 2)[:FACTS]
    if near:
        grid = list(itertools.product(people[:NAMES_APART], people[NAMES_APART : 2 * NAMES_APART]))
        pairs = random.permutation(np.array(grid))[:FACTS]
    told = np.array([[*start, *pair, *middle, candidates[word], *end] for pair, word in zip(pairs, answers)])
    room, asked = length - told.size, len(start) + 2 + len(middle)
    cut, depths = random.integers(len(filler) - room), np.sort(random.integers(1, room, FACTS))
    first, *parts = np.split(filler[cut : cut + room], depths)
    tokens = np.concatenate([first, *itertools.chain(*zip(told, parts))])
    places = depths + np.arange(FACTS) * told.shape[1] + asked
    arrays = tokens, told[:, :asked], places, answers, candidates
    return Facts(*(jnp.asarray(array, jnp.int32) for array in arrays))


@functools.partial(jax.jit, static_argnames=("sizes",))
def ask_decoder(parameters: Parameters, facts: Facts, numbers: HeadNumbers, changes: Change, sizes: Sizes) -> Asked:
    """Asks a decoder for each fact of a text, with changes in the last row of the question.

    All rows before it are weighed with the numbers, and are computed once for all changes.
    """
    text = hidden(parameters, sizes, facts.tokens, by_numbers, numbers)[1]
    unembed = parameters.get("scores", parameters["embed"])[facts.candidates] * parameters["norm"][None]
    layers = len(parameters["layers"]["out"])
    out = parameters["layers"]["out"].reshape(layers, -1, sizes.heads, text.value.shape[-1])
    out = jnp.moveaxis(out, 1, -1)

    def ask(fact: tuple[Array, ...]) -> tuple[Array, ...]:
        question, place, other, answer = fact
        asked = hidden(parameters, sizes, question[:-1], by_numbers, numbers, text)[1]
        past = Cache(*(jnp.concatenate(pair, 1) for pair in zip(text, asked)))
        keys = jnp.arange(past.key.shape[1] + 1, dtype=jnp.int32)

        def answer_under(change: Change) -> Array:
            needle = keys == jnp.where(change.other > 0.5, other, place)
            given = change.numbers, change.oracle, jnp.broadcast_to(needle, (layers, 1, 1, len(keys)))
            after = hidden(parameters, sizes, question[-1:], weigh_with_oracle, given, past)[0][-1]
            return scores(parameters, after)[facts.candidates].argmax() == answer

        plain = sj.probe(
            lambda: hidden(parameters, sizes, question[-1:], by_numbers, numbers, past),
            also=lambda weights: weights[:, 0],
            where=lambda site: site.use == "attention",  # the entropy of adaptive temperature is another
        )
        _, (rows,) = plain()
        weight = rows.also[..., place]
        value = jnp.repeat(past.value[:, place], sizes.heads // sizes.key_heads, 1)
        direction = unembed[answer] - unembed.mean(0)
        write = jax.vmap(written, (None, 0, 0))(direction, out, value)
        return jax.vmap(answer_under)(changes), rows.largest[..., 0], weight, weight * write

    given = facts.questions, facts.places, jnp.roll(facts.places, 1), facts.answers
    right, *heads = jax.lax.map(ask, given)
    return Asked(right.T, *heads)


class Items(NamedTuple):
    """A sequence of items and queries, or several sets with a query each; what each query asks for."""

    inputs: Any
    needles: Bool[Array, "queries keys"]
    """The items that each query asks for."""
    others: Bool[Array, "queries keys"]
    """As many other items for each query."""
    answers: Int[Array, " queries"]

    @classmethod
    def drawn(
        cls, inputs: Any, needles: Bool[Array, "queries items"], answers: Int[Array, " queries"], key: Key[Array, ""]
    ) -> "Items":
        """Returns the items with others drawn by lot: for each query, as far behind those asked for."""
        steps = jax.random.randint(jax.random.fold_in(key, 0), answers.shape, 1, needles.shape[-1], jnp.int32)
        return cls(inputs, needles, jax.vmap(jnp.roll)(needles, steps), answers)


def largest_and_weight(
    weights: Float[Array, "*heads queries keys"], needles: Bool[Array, "queries keys"]
) -> tuple[Float[Array, "*heads queries"], Float[Array, "*heads queries"]]:
    """Returns the sum of as many of a row's largest weights as items are asked for, and the weight of these items."""
    count = needles.sum(-1, dtype=jnp.int32)[..., None] - 1

    def sum_largest(weights: Float[Array, "queries keys"]) -> Float[Array, " queries"]:
        descending = jnp.sort(weights, axis=-1, descending=True)
        return jnp.take_along_axis(jnp.cumsum(descending, -1), count, -1)[:, 0]

    by_head = weights.reshape(-1, *weights.shape[-2:])
    both = jax.vmap(sum_largest)(by_head), jax.vmap(lambda row: sum_largest(jnp.where(needles, row, 0)))(by_head)
    largest, weight = (sums.reshape(weights.shape[:-1]) for sums in both)
    return largest, weight


@dataclasses.dataclass(frozen=True)
class Count(MultiQuery):
    """Asks how many items have the key of the query: one or more, two on average."""

    name: ClassVar[str] = "count"

    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns keys that runs of items share; a model without positions does not see that they are runs."""
        starts = jax.random.bernoulli(jax.random.fold_in(key, 1), jnp.float32(0.5), visible.shape)
        run = jnp.cumsum(starts.at[0].set(False), dtype=jnp.int32)
        codes = super().keys(key, visible, places).item_codes[run]
        return Keys(codes, codes[places], places)

    def sequence(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Sequences:
        """Draws one sequence; the class is the count less one, the last class for any larger one."""
        drawn = super().sequence(key, length, room)
        counts = self.same(drawn.inputs).sum(-1, dtype=jnp.int32)
        return drawn._replace(answer=jnp.minimum(counts, self.classes) - 1)

    def same(self, inputs: Float[Array, "length features"]) -> Bool[Array, "queries items"]:
        """Returns which items have the key of each query; those that are masked, which are 0, have none."""
        codes = inputs[:, :CODE]
        return (codes[-self.queries :, None] == codes[None, : -self.queries]).all(-1)


def draw_sequence(task: Retrieval, length: int, key: Key[Array, ""]) -> Items:
    """Draws a sequence of a retrieval task, with the items that each query asks for."""
    drawn = task.sequence(key, jnp.int32(length), length)
    code_key, _, query_key = jax.random.split(key, 3)  # as the task does
    places = jax.random.randint(query_key, (task.queries,), 0, length, jnp.int32)
    targets = task.keys(code_key, jnp.ones(length, bool), places).targets
    needles = task.same(drawn.inputs) if isinstance(task, Count) else jax.nn.one_hot(targets, length, dtype=bool)
    return Items.drawn(drawn.inputs, needles, drawn.answer, key)


def ask_blocks(
    model: Any,
    embedded: Float[Array, "length width"],
    visible: Bool[Array, "length length"],
    items: Items,
    direction: Float[Array, "width queries"],
    score: Callable[[Array], Array],
    numbers: HeadNumbers,
    changes: Change,
) -> Asked:
    """Asks a transformer whose last rows are the questions, with changes in these rows alone.

    `score` takes the normed rows to the logits of the answers; along `direction` that of the right one grows.
    """
    length, queries = len(embedded), len(items.answers)
    room = ((0, 0), (0, length - items.needles.shape[1]))
    items = items._replace(needles=jnp.pad(items.needles, room), others=jnp.pad(items.others, room))

    def answer_under(change: Change) -> tuple[Array, ...]:
        x, heads = embedded, []
        for layer, block in enumerate(model.blocks):
            by_head = block.attention_in(block.attention_norm(x)).reshape(length, 3, block.heads, -1)
            query, key, value = jnp.moveaxis(by_head, 1, 0)
            logits = jnp.einsum("qhs,khs->hqk", query * key.shape[-1] ** -0.5, key, precision="highest")
            layer_numbers = HeadNumbers(*(array[layer] for array in numbers))
            plain = by_numbers(logits[:, :-queries], visible[:-queries], layer_numbers)
            asking = change.weigh(logits[:, -queries:], visible[-queries:], items, layer)
            attended = jnp.einsum("hqk,khs->qhs", jnp.concatenate([plain, asking], 1), value)
            x = x + block.attention_out(attended.reshape(x.shape))
            x = x + block.perceptron_out(nnx.gelu(block.perceptron_in(block.perceptron_norm(x))))
            read = jnp.einsum("hqk,khs->qhs", jnp.where(items.needles[None], asking, 0), value)
            out = block.attention_out.kernel[...].reshape(block.heads, key.shape[-1], -1)
            sums = (each.T for each in largest_and_weight(asking, items.needles))
            heads.append((*sums, jax.vmap(written, (1, None, 0))(direction, out, read)))
        right = score(model.norm(x[-queries:])).argmax(-1) == items.answers
        return right, *(jnp.stack(each, 1) for each in zip(*heads))

    right, *heads = jax.lax.map(answer_under, changes)
    return Asked(right, *(each[0] for each in heads))  # those of the first change, which is none


@functools.partial(jax.jit, static_argnames=("task",))
def ask_transformer(parameters: Any, items: Items, numbers: HeadNumbers, changes: Change, task: Retrieval) -> Asked:
    """Asks the small transformer, with changes in the rows of all queries; the rows of items have the numbers."""
    model: Any = nnx.merge(build_model(task)[0], parameters)
    kernel = model.classify.kernel[...] * model.norm.scale[...][:, None]
    direction = (kernel - kernel.mean(1, keepdims=True))[:, items.answers]
    visible = jnp.ones((len(items.inputs),) * 2, bool)
    return ask_blocks(model, model.embed(items.inputs), visible, items, direction, model.classify, numbers, changes)


def draw_instances(task: ClrsText, algorithm: str, length: int, key: Key[Array, ""], sets: int = 16) -> Items:
    """Draws questions of an algorithm that answers with a node, whose number is what is asked for."""
    drawn = dataclasses.replace(task, algorithms=(algorithm,)).test_batch(key, length, sets)
    question, _ = task.slots(algorithm, length)
    answers = drawn.answer[:, 0]
    needles = jax.nn.one_hot(answers, length, dtype=bool)
    items = Items.drawn(drawn.tokens[:, 0, :question], needles, answers, key)
    before = ((0, 0), (1, 0))  # the algorithm's name is one token
    return items._replace(needles=jnp.pad(items.needles, before), others=jnp.pad(items.others, before))


@functools.partial(jax.jit, static_argnames=("task",))
def ask_clrs(parameters: Any, items: Items, numbers: HeadNumbers, changes: Change, task: ClrsText) -> Asked:
    """Asks the decoder of CLRS-Text for the first token of each answer, with changes in the last row of a question."""
    model: Any = nnx.merge(build_model(task)[0], parameters)
    vectors = model.vectors()
    nodes = vectors[: items.needles.shape[1] - 1]
    visible = jnp.tri(items.inputs.shape[1], dtype=bool)

    def ask(items: Items) -> Asked:
        one = jax.tree.map(lambda array: array[None], items)
        direction = ((vectors[items.answers] - nodes.mean(0)) * model.norm.scale[...])[:, None]
        return ask_blocks(model, vectors[items.inputs], visible, one, direction, model.scores, numbers, changes)

    asked = jax.lax.map(ask, items)
    return Asked(asked.right[..., 0].T, *(each[:, 0] for each in asked[1:]))


def draw_sets(task: MaxRetrieval, length: int, key: Key[Array, ""], sets: int = 16) -> Items:
    """Draws sets of max retrieval, with their largest items."""
    batch = task.test_batch(key, length, sets)
    needles = jax.nn.one_hot(batch.items[..., 0].argmax(1), length, dtype=bool)
    return Items.drawn(batch, needles, batch.answer, key)


@functools.partial(jax.jit, static_argnames=("task",))
def ask_head(parameters: Any, items: Items, numbers: HeadNumbers, changes: Change, task: MaxRetrieval) -> Asked:
    """Asks the one head of max retrieval; all its rows ask, so the numbers of other rows change nothing."""
    model: Any = nnx.merge(build_model(task)[0], parameters)
    encoded = model.hidden(items.inputs.items)
    logits = model.logits(encoded, items.inputs.query)[None]

    def answer_under(change: Change) -> tuple[Array, Array]:
        weights = change.weigh(logits, items.inputs.mask, items, 0)[0]
        answers = model.read(model.pool(weights, encoded), weights.sum(-1)).argmax(-1)
        return answers == items.answers, weights

    right, weights = jax.lax.map(answer_under, changes)
    largest, weight = (each[:, None, None] for each in largest_and_weight(weights[0], items.needles))
    return Asked(right, largest, weight, weight)


@dataclasses.dataclass(frozen=True)
class Reader:
    """One task that some models are asked about."""

    family: str
    shape: tuple[int, int]
    """Layers, and heads of each."""
    reference: int
    """The number of keys at which the law leaves a row as it is."""
    lengths: tuple[int, ...]
    """From short to long; heads are chosen at the first."""
    models: Callable[[], list[Any]]
    """Returns the parameters of each model; trains them first where that is needed."""
    seeds: int
    """Models."""
    texts: int
    """Texts, or groups of sets, of each length."""
    draw: Callable[[int, int, bool], Any]
    """Returns a text, by its length and number, of those that are tested or of those that heads are chosen on."""
    ask: Callable[[Any, Any, HeadNumbers, Change], Asked]
