"""CLRS-Text: algorithms asked in words, answered token by token by a decoder, at lengths that it was not trained at.

A set is a question and its answer. A training batch has equally many of every algorithm and length, packed into rows
in which no token sees another set's.

Source: Veličković et al., "softmax is not enough (for sharp out-of-distribution)", arXiv 2410.01104, whose second
experiment trains Gemma 2B on it; Markeeva et al., arXiv 2406.04229, for the texts and the lengths.
"""

import dataclasses
import enum
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks.sequences import attention_of
from softmax_jax.experiment.tasks.task import Task, sequence_key
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.refusal import Refusal
from studies.clrs_text.algorithms import ALGORITHMS, Kind
from studies.clrs_text.decoder import Decoder
from studies.clrs_text.rows import NONE, Packed, packed_rows, slots_of, tokenizer_of
from studies.clrs_text.texts import answer_parts, question_parts
from studies.clrs_text.tokens import INTEGERS, TOKENIZERS, Tokenizer

PUBLISHED_LENGTHS = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)
"""Those of training in the paper."""
TEST_LENGTHS = (*PUBLISHED_LENGTHS, 40, 48, 56, 64)
LONGEST_TESTS = (128, 256)
"""Of the algorithms whose answer is one number."""
TEST_SETS = 125


class Purpose(enum.IntEnum):
    """What the key of a seed is folded with."""

    TRAINING = 0
    TEST = 1


class Texts(NamedTuple):
    """Questions and answers in rows, and where the answers are read."""

    tokens: Int[Array, "sets rows width"]
    text: Int[Array, "sets rows width"]
    """Which text of the row a slot belongs to; `NONE` where there is no token."""
    read: Int[Array, "sets answers"]
    """The slot, counted through the rows, after which each token of an answer follows."""
    answer: Int[Array, "sets answers"]
    weight: Float[Array, "sets answers"]
    """One over the tokens of the answer it belongs to; 0 where there is no token."""
    text_index: Int[Array, "sets answers"]
    """Which of the texts it belongs to, counted through the rows."""


@dataclasses.dataclass(frozen=True)
class ClrsText(Task):
    """The texts, the decoder and its sizes. Raises Refusal for sizes that make none."""

    name: ClassVar[str] = "clrs_text"
    grouped_by: ClassVar[str] = "algorithm"
    columns: ClassVar[tuple[str, ...]] = ("accuracy",)
    tests_over_sets: ClassVar[bool] = True
    measures_every_length: ClassVar[bool] = True

    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    """What to learn, by the names of CLRS."""
    lengths: tuple[int, ...] = PUBLISHED_LENGTHS
    """Nodes of the instances in training."""
    tokenizer: str = "number"
    """One token for each number, or those of SmolLM2, which splits numbers: `number` or `smollm2`."""
    decimals: int = 3
    """Decimals of the numbers."""
    batch: int = 2
    """Texts of every algorithm and length in a batch."""
    hidden: int = 128
    """Width of the decoder."""
    heads: int = 4
    """Attention heads in each of its layers."""
    layers: int = 4
    """Blocks of attention and perceptron."""

    def __post_init__(self) -> None:
        for name in self.algorithms:
            checks.one_of("--algorithms", name, ALGORITHMS)
        checks.one_of("--tokenizer", self.tokenizer, TOKENIZERS)
        most = TOKENIZERS[self.tokenizer].most_decimals
        bounds = {"decimals": (1, most)}
        for field in dataclasses.fields(self):
            if field.type is int:
                ends = bounds.get(field.name, (1, 2**14))
                checks.whole(
                    f"--{field.name}", getattr(self, field.name), ends[0], getattr(type(self), field.name), ends[1]
                )
        if self.hidden % (2 * self.heads):
            nearest = 2 * self.heads * max(round(self.hidden / self.heads / 2), 1)
            rule = f"it must be an even multiple of --heads, {self.heads}, such as {nearest}"
            raise Refusal(f"--hidden is {self.hidden}: {rule}")
        for length in self.lengths:
            self.check_length("--lengths", length)

    def parts(self) -> dict[str, Task]:
        """The tasks of the algorithms, which are tested one by one."""
        return {name: dataclasses.replace(self, algorithms=(name,)) for name in self.algorithms}

    def check_length(self, option: str, length: int) -> None:
        """Raises Refusal for a length at which an algorithm has no instance."""
        for name in self.algorithms:
            least = ALGORITHMS[name].least
            if not least <= length <= INTEGERS:
                raise Refusal(f"{option} has {length}: {name} must have from {least} to {INTEGERS} nodes, such as 16")

    @property
    def vocabulary(self) -> Tokenizer:
        """The tokens, of all algorithms whichever are learned."""
        return tokenizer_of(self.tokenizer, self.decimals)

    @property
    def longest(self) -> int:
        """The most nodes in training."""
        return max(self.lengths)

    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Texts:
        """The batch of a step: new texts each time, as many of each algorithm as of each length."""
        return self.draw_batch(Purpose.TRAINING, seed, step)

    def draw_batch(self, purpose: Purpose, seed: Int[Array, ""], step: Int[Array, ""]) -> Texts:
        """Returns `batch` texts of every algorithm and length, packed into rows; tests have texts of their own."""
        key = jax.random.fold_in(jax.random.fold_in(sequence_key(seed), purpose), step)
        lengths = jnp.tile(jnp.asarray(self.lengths, jnp.int32), self.batch)
        drawn, taken = [], []
        for index, name in enumerate(self.algorithms):
            keys = jax.random.split(jax.random.fold_in(key, index), len(lengths))
            text = jax.vmap(functools.partial(self._text, name, self.longest))(keys, lengths)
            for tokens, present in zip(*text):
                drawn.append(tokens.reshape(self.batch, -1))
                taken.append(present.reshape(self.batch, -1))
        tokens, present = jnp.concatenate(drawn, 1), jnp.concatenate(taken, 1)
        return self._texts(self.packed, tokens, present)

    def _text(
        self, algorithm: str, room: int, key: Key[Array, ""], length: Int[Array, ""]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Tokens of a question, against the right of its room, and an answer, against the left, and which there are."""
        solve, draw = ALGORITHMS[algorithm].solve, ALGORITHMS[algorithm].draw
        inputs = draw(key, length, room, self.decimals)
        question = self.vocabulary.compiled(question_parts(algorithm), inputs, length)
        answer = self.vocabulary.compiled(answer_parts(algorithm), solve(inputs, length, self.decimals), length)
        orders = jnp.argsort(question[1]), jnp.argsort(~answer[1])
        # What stands where there is no token may be no token at all, which no score could be the best of.
        known = [(jnp.where(taken, tokens, 0), taken) for tokens, taken in (question, answer)]
        tokens, present = zip(*((part[0][order], part[1][order]) for part, order in zip(known, orders)))
        return tokens, present

    def slots(self, algorithm: str, length: int) -> tuple[int, int]:
        """The most tokens of a question and of an answer at a length."""
        return slots_of(self.tokenizer, self.decimals, algorithm, length)

    @property
    def packed(self) -> Packed:
        """Where the texts of a batch lie."""
        return packed_rows(self.tokenizer, self.decimals, self.algorithms, self.lengths)

    def _texts(self, packed: Packed, tokens: Int[Array, "sets slots"], present: Bool[Array, "sets slots"]) -> Texts:
        """The texts where they belong."""
        sets = len(tokens)
        text = jnp.where(present[:, packed.slots] & (packed.text >= 0)[None], packed.text[None], NONE)
        text_index = jnp.broadcast_to(packed.text_index[None], (sets, len(packed.text_index)))
        counts = present[:, packed.answers].astype(jnp.float32)
        texts = int(packed.text_index.max()) + 1
        totals = jax.vmap(lambda count: jax.ops.segment_sum(count, packed.text_index, texts))(counts)
        return Texts(
            tokens[:, packed.slots],
            text,
            jnp.broadcast_to(packed.read[None], text_index.shape),
            tokens[:, packed.answers],
            counts / totals[:, packed.text_index],
            text_index,
        )

    def build(self, normalizer: str, rngs: nnx.Rngs) -> Decoder:
        """The decoder, with the numbers that the normalizer learns among its parameters."""
        sizes = {"hidden": self.hidden, "heads": self.heads, "layers": self.layers}
        return Decoder(self.vocabulary.features(), *attention_of(normalizer), **sizes, rngs=rngs)

    def scores(
        self, model: Any, batch: Texts, rngs: nnx.Rngs | None, normalizer: Normalizer | None = None
    ) -> Float[Array, "sets answers classes"]:
        """The scores of every token of the answers, each after the right ones before it, by a `Decoder` or its like.

        Where an answer has no token, the one that stands there scores best.
        """
        sets, _, width = batch.tokens.shape
        text, tokens = (rows.reshape(-1, width) for rows in (batch.text, batch.tokens))
        mask = (text[:, :, None] == text[:, None, :]) & (text >= 0)[:, None, :] & jnp.tri(width, dtype=bool)[None]
        hidden = model(tokens, mask, normalizer).reshape(sets, -1, self.hidden)
        scores = model.scores(jnp.take_along_axis(hidden, batch.read[..., None], 1))
        return jnp.where(batch.weight[..., None] > 0, scores, jax.nn.one_hot(batch.answer, scores.shape[-1]))

    def loss(self, scores: Float[Array, "sets answers classes"], batch: Texts) -> Float[Array, ""]:
        """The cross-entropy in nats of a token of an answer, an answer counting as the root of its tokens.

        If all answers counted alike, a token of a long one would hardly count, which is wrong if one of them is; if
        all tokens did, there would be little but long answers.
        """
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer)
        weight = jnp.sqrt(batch.weight)
        return (losses * weight).sum() / weight.sum()

    def accuracy(self, scores: Float[Array, "sets answers classes"], batch: Texts) -> Float[Array, ""]:
        """Answers that are right to their end, in percent."""
        wrong = ~self.right(scores, batch)
        return 100 - 100 * wrong.sum(dtype=jnp.float32) / batch.weight.sum().round()

    def right(self, scores: Float[Array, "sets answers classes"], batch: Texts) -> Bool[Array, "sets texts"]:
        """Returns whether each answer is right to its end; texts are those of an algorithm at a length, in order.

        Answers are read after the right tokens before them, which says the same as greedy decoding: up to the first
        mistake both have seen the same.
        """
        texts = len(self.algorithms) * len(self.lengths)
        wrong = (batch.weight > 0) & (scores.argmax(-1) != batch.answer)
        count = jax.vmap(lambda row, text: jax.ops.segment_sum(row, text, texts))
        return count(wrong.astype(jnp.int32), batch.text_index) == 0

    @property
    def test_lengths(self) -> tuple[int, ...]:
        """The published ones up to 64; two beyond where all answers are single numbers."""
        single = all(Kind.INTEGER in ALGORITHMS[name].outputs.values() for name in self.algorithms)
        return TEST_LENGTHS + LONGEST_TESTS * single

    @property
    def least_sets(self) -> int:
        """Devices may divide the batches, down to a set each."""
        return 1

    def test_sets(self, length: int) -> int:
        """As many as were published for each of five seeds."""
        return TEST_SETS

    def at_once(self, length: int) -> int:
        """Returns as many texts as leave their scores in memory."""
        return 32 if length <= 64 else 4

    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Texts:
        """Returns texts of the first algorithm, each in a row of its own; evaluations take the `parts` in turn.

        Raises as `check_length`.
        """
        self.check_length("--lengths", length)
        keys, lengths = jax.random.split(key, sets), jnp.full(sets, length, jnp.int32)
        tokens, present = jax.vmap(functools.partial(self._text, self.algorithms[0], length))(keys, lengths)
        alone = dataclasses.replace(self, algorithms=self.algorithms[:1], lengths=(length,))
        return alone._texts(alone.packed, jnp.concatenate(tokens, 1), jnp.concatenate(present, 1))
