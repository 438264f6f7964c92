"""Retrieval in a sequence: queries that each ask for the class of one item among many.

A sequence is items, then queries. An item has some way to be found and a class κ; a query names one and is answered
by its κ. All that changes is how it is found:

- `max-retrieval`: as the item with the largest ρ; there is one query, and it says nothing.
- `sort`: as the next in the order of ρ. The queries show items in sorted order and each asks for the class of the
  item that follows, itself if it is the largest: sorting, one step at a time, with the steps before it given.
- `copy`: as the item at a position. The queries go through ascending positions. Positions are drawn from a range
  that is the same at every length, so that long sequences hold no position that short ones never show.
- `multi-query`: as the item with a key of random signs; the queries show keys in any order.

Source: the tasks of "Long-Context Generalization with Sparse Attention", arXiv 2506.16640, as retrieval in one pass:
there the answers are written token by token, and all of them must be right.
"""

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers import checks
from softmax_jax.tasks.sequences import Batch

Kind = Literal["max-retrieval", "sort", "copy", "multi-query"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CLASSES = 10
CODE = 32
"""Features by which an item is found."""
POSITIONS = 2**14
LEAST_ITEMS = 2


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """One of the tasks with its sizes; raises ValueError for sizes that make no task."""

    kind: Kind
    length: int = 64
    """The most items in training; a training sequence has any number from 2 to this."""
    queries: int = 16
    batch: int = 32
    steps_per_epoch: int = 100
    causal: bool = False
    classes: int = CLASSES

    def __post_init__(self) -> None:
        checks.one_of("--task", self.kind, KINDS)
        checks.whole("--length", self.length, LEAST_ITEMS, Retrieval.length, POSITIONS)
        checks.whole("--classes", self.classes, 2, CLASSES, 2**14)
        for name in ("queries", "batch", "steps_per_epoch"):
            checks.whole(f"--{name.replace('_', '-')}", getattr(self, name), 1, getattr(Retrieval, name), 2**16)
        checks.yes_or_no("--causal", self.causal)

    @property
    def features(self) -> int:
        """The code, the class, and whether this is an item or a query."""
        return CODE + self.classes + 1

    def training_batch(self, key: Key[Array, ""], step: Int[Array, ""]) -> Batch:
        """The batch of a step: new sequences each time, of any length up to the longest."""
        key, length_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), step))
        lengths = jax.random.randint(length_key, (self.batch,), LEAST_ITEMS, self.length + 1)
        return self._draw(key, self.length, lengths)

    def test_batch(self, key: Key[Array, ""], length: int, index: Int[Array, ""], sequences: int) -> Batch:
        """New sequences, all of the given length. Raises ValueError for more items than there are positions."""
        checks.random_key(key)
        checks.whole("length", length, LEAST_ITEMS, self.length, POSITIONS)
        checks.whole("sequences", sequences, 1, 16)
        key = jax.random.fold_in(jax.random.fold_in(key, 1), index)
        return self._draw(key, length, jnp.full(sequences, length))

    def read(self, scores: Float[Array, "sequences length classes"]) -> Float[Array, "sequences queries classes"]:
        """The scores at the queries."""
        return scores[:, -self.asked :]

    @property
    def asked(self) -> int:
        """Queries in a sequence."""
        return 1 if self.kind == "max-retrieval" else self.queries

    def _draw(self, key: Key[Array, ""], items: int, lengths: Int[Array, " sequences"]) -> Batch:
        keys = jax.random.split(key, len(lengths))
        return jax.vmap(lambda key, length: self._sequence(key, items, length))(keys, lengths)

    def _sequence(self, key: Key[Array, ""], items: int, length: Int[Array, ""]) -> Batch:
        """One sequence, without a batch axis; items from `length` on are masked."""
        code_key, class_key, query_key = jax.random.split(key, 3)
        visible = jnp.arange(items) < length
        kappa = jax.random.randint(class_key, (items,), 0, self.classes)
        asked = jax.random.randint(query_key, (self.asked,), 0, length)
        rho = jnp.full(items, -1.0)
        if self.kind in ("max-retrieval", "sort"):
            rho = jnp.where(visible, jax.random.uniform(code_key, (items,)), 2.0)
            code = _wave_code(rho, 1 / 256, 2.0)
            order = jnp.argsort(rho)  # masked items come last
            place = jnp.sort(asked)
            shown, found = (order[place], order[jnp.minimum(place + 1, length - 1)])
        elif self.kind == "copy":
            # Any ascending numbers, and then each further up by one than the one before it: no two alike.
            gaps = jax.random.randint(code_key, (items,), 0, POSITIONS - items + 1)
            position = jnp.sort(jnp.where(visible, gaps, POSITIONS)) + jnp.arange(items)  # masked items come last
            code = _wave_code(position.astype(jnp.float32), 4.0, 2.0 * POSITIONS)
            shown = found = jnp.sort(asked)
        else:
            code = jax.random.rademacher(code_key, (items, CODE), jnp.float32)
            shown = found = asked
        answer, blank = kappa[found], jnp.zeros((self.asked, self.classes))
        query_code = code[shown]
        if self.kind == "max-retrieval":
            answer, query_code = kappa[jnp.where(visible, rho, -1).argmax()][None], jnp.zeros((1, CODE))
        of_items = jnp.concatenate([code, jax.nn.one_hot(kappa, self.classes), jnp.zeros((items, 1))], 1)
        of_queries = jnp.concatenate([query_code, blank, jnp.ones((self.asked, 1))], 1)
        inputs = jnp.concatenate([jnp.where(visible[:, None], of_items, 0), of_queries])
        return Batch(inputs, jnp.concatenate([visible, jnp.ones(self.asked, bool)]), answer)


def _wave_code(place: Float[Array, " items"], shortest: float, longest: float) -> Float[Array, "items code"]:
    """Sines and cosines of a place, of periods from the shortest to the longest."""
    periods = jnp.geomspace(shortest, longest, CODE // 2)[None, :]
    angles = 2 * jnp.pi * (place[:, None] % periods) / periods  # within one period, where a sine has all its digits
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1)
