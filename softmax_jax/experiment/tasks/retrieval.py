"""Retrieval in a sequence: queries that each ask for the class of one item among many.

A sequence is items, then queries. An item has a code and a class κ; a query asks for one item and is answered by its
κ. Tasks differ in what the codes are and in which item a query asks for.

Source: the tasks of "Long-Context Generalization with Sparse Attention", arXiv 2506.16640, as retrieval in one pass:
there the answers are written token by token, and all of them must be right.
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks.items import ItemTask, then_queries
from softmax_jax.experiment.tasks.sequences import LONGEST, Sequences
from softmax_jax.normalizers.arithmetic import place_of_largest

CODE = 32
"""Features by which an item is found."""
POSITIONS = LONGEST


class Keys(NamedTuple):
    """How the items of one sequence are found, and which of them is asked for."""

    item_codes: Float[Array, "items code"]
    query_codes: Float[Array, "queries code"]
    """What each query shows."""
    targets: Int[Array, " queries"]
    """The item whose class answers each query."""


@dataclasses.dataclass(frozen=True)
class Retrieval(ItemTask):
    """What the retrieval tasks share: items with a code and a class, of which each query asks for one."""

    @property
    def inputs(self) -> int:
        """Features of the code, of the class, and of whether this is an item or a query."""
        return CODE + self.classes + 1

    @abc.abstractmethod
    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns the codes of items and queries. `places` are items that the queries may ask for, in any order."""

    def sequence(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Sequences:
        """Draws one sequence, without a batch axis; items from `length` on are masked."""
        code_key, class_key, query_key = jax.random.split(key, 3)
        visible = jnp.arange(room, dtype=jnp.int32) < length
        kappa = jax.random.randint(class_key, (room,), 0, self.classes, jnp.int32)
        places = jax.random.randint(query_key, (self.queries,), 0, length, jnp.int32)
        keys = self.keys(code_key, visible, places)
        marks = jnp.full(self.queries, self.classes, jnp.int32)  # the number behind the classes marks a query
        item_class, query_mark = (jax.nn.one_hot(k, self.classes + 1, dtype=jnp.float32) for k in (kappa, marks))
        items = jnp.concatenate([keys.item_codes, item_class], 1)
        queries = jnp.concatenate([keys.query_codes, query_mark], 1)
        return Sequences(*then_queries(items, visible, queries), kappa[keys.targets])


@dataclasses.dataclass(frozen=True)
class TransformerMaxRetrieval(Retrieval):
    """Asks for the item with the largest ρ by one empty query. The model is a transformer, not one head."""

    name: ClassVar[str] = "transformer_max_retrieval"

    queries: int = 1
    """Queries in a sequence: one, as any other would ask the same."""

    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns codes of ρ, empty queries and the largest item."""
        rho, codes = _in_order(key, visible)
        largest = place_of_largest(jnp.where(visible, rho, -1))
        return Keys(codes, jnp.zeros((len(places), CODE), jnp.float32), jnp.full(len(places), largest))


@dataclasses.dataclass(frozen=True)
class Sort(Retrieval):
    """Asks for the next item in the order of ρ: sorting, one step at a time, with the steps before it given.

    The queries show items in sorted order. Each asks for the one that follows, and the largest for itself.
    """

    name: ClassVar[str] = "sort"

    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns codes of ρ, those of sorted queries and the item that follows each."""
        rho, codes = _in_order(key, visible)
        order, place = jnp.argsort(rho), jnp.sort(places)  # masked items come last
        return Keys(codes, codes[order[place]], order[jnp.minimum(place + 1, visible.sum(dtype=jnp.int32) - 1)])


@dataclasses.dataclass(frozen=True)
class Copy(Retrieval):
    """Asks for the item at a position; the queries go through ascending positions.

    Positions are drawn from a range that is the same at every length, so that long sequences hold no position that
    short ones never show.
    """

    name: ClassVar[str] = "copy"

    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns codes of ascending positions, for items and queries."""
        items = len(visible)
        # Ascending numbers, the i-th raised by i, so that no two are equal.
        gaps = jax.random.randint(key, (items,), 0, POSITIONS - items + 1, jnp.int32)
        position = jnp.sort(jnp.where(visible, gaps, POSITIONS)) + jnp.arange(
            items, dtype=jnp.int32
        )  # masked items come last
        codes = _wave_code(position.astype(jnp.float32), 4.0, 2.0 * POSITIONS)
        place = jnp.sort(places)
        return Keys(codes, codes[place], place)


@dataclasses.dataclass(frozen=True)
class MultiQuery(Retrieval):
    """Asks for the item with a key of random signs; the queries show keys in any order."""

    name: ClassVar[str] = "multi_query"

    def keys(self, key: Key[Array, ""], visible: Bool[Array, " items"], places: Int[Array, " queries"]) -> Keys:
        """Returns random signs, for items and queries."""
        # As jax.random.rademacher, which draws other signs where x64 is on.
        codes = 2 * jax.random.bernoulli(key, jnp.float32(0.5), (len(visible), CODE)).astype(jnp.float32) - 1
        return Keys(codes, codes[places], places)


def _in_order(
    key: Key[Array, ""], visible: Bool[Array, " items"]
) -> tuple[Float[Array, " items"], Float[Array, "items code"]]:
    """Returns ρ of every item, 2 where masked, and its code."""
    rho = jnp.where(visible, jax.random.uniform(key, (len(visible),), jnp.float32), 2.0)
    return rho, _wave_code(rho, 1 / 256, 2.0)


def _wave_code(place: Float[Array, " items"], shortest: float, longest: float) -> Float[Array, "items code"]:
    """Returns sines and cosines of a place, of periods from the shortest to the longest."""
    periods = jnp.geomspace(shortest, longest, CODE // 2, dtype=jnp.float32)[None, :]
    angles = 2 * jnp.pi * (place[:, None] % periods) / periods  # within one period, where a sine has all its digits
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1)
