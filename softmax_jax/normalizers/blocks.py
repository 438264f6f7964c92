"""Rows of logits that come block by block: their sums, maxima and statistics, in the memory of one block.

Nothing here knows what a block is made from: slices of keys and values, or items drawn and encoded when their
turn comes. Whatever a block is computed from is computed again in the backward pass instead of being kept, so
that differentiating, in either mode, needs the memory of one block too.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.masking import (
    below,
    settled,
    visible_count,
    visible_logits,
    visible_or_lowest,
)
from softmax_jax.normalizers.products import entropy_of, entropy_sums, product
from softmax_jax.normalizers.surroundings import varying

Tree = Any
"""An array, or a tuple, list or dictionary of them."""


class Block(NamedTuple):
    """A block of the entries of each row.

    `attend` takes weights of the shape of the logits to what they weigh, summed over the block: arrays of shape
    (*rows, features), linear in the weights. `where` is True at the visible entries, and None if all are; a logit of
    -inf hides its entry too, a low number that was added does not.
    """

    logits: Float[Array, "*rows entries"]
    attend: Callable[[Float[Array, "*rows entries"]], Tree]
    where: Bool[Array, "*#rows #entries"] | None = None
    finite: bool = False
    """Whether no logit is -inf where the mask shows it: the length of a row is then known without the logits."""


@jax.custom_jvp
def attach(value: Tree, equal: Tree) -> Tree:
    """The value, with the derivative of something equal, which so is computed for that derivative alone."""
    return value


@attach.defjvp
def _(primals: Any, tangents: Any) -> tuple[Tree, Tree]:
    return attach(*primals), tangents[1]


@jax.custom_jvp
def solution_moved(total: Float[Array, "*row"], slope: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """Zero, whose derivative is the move of the number that keeps a total which falls with it by this slope."""
    return jnp.zeros_like(total)


@solution_moved.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    slope = _once(primals[1])
    return solution_moved(*primals), tangents[0] / jnp.where(slope == 0, 1, slope)


@jax.custom_jvp
def _once(slope: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """The slope, which is that at the solution alone, so that it has no derivative to go on with."""
    return slope


@_once.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    raise NotImplementedError(
        "a threshold found in blocks has a first derivative alone: use implementation='dense' for the second"
    )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Rows whose entries `read` gives in blocks, one for each index into the leading axis of the arrays in `blocks`.

    Within `shard_map`, `axis_name` is the axis of the mesh over which the blocks are divided: each device reads
    its own, and what is summed here is summed over the devices too.
    """

    read: Callable[[Any], Block]
    blocks: Any
    axis_name: str | None = None

    @functools.cached_property
    def like(self) -> jax.ShapeDtypeStruct:
        """Shape of the logits of one block, and the type in which they are computed."""
        first = jax.tree.map(lambda array: array[0], self.blocks)
        return jax.eval_shape(lambda operand: visible_logits(self.read(operand).logits), first)

    @property
    def entries(self) -> int:
        """Entries of a row in all blocks on all devices, visible or not."""
        devices = 1 if self.axis_name is None else jax.lax.axis_size(self.axis_name)
        return devices * jax.tree.leaves(self.blocks)[0].shape[0] * self.like.shape[-1]

    def full(self, value: ArrayLike) -> Float[Array, "*rows 1"]:
        """One number for each row."""
        return jnp.broadcast_to(self.number(value), (*self.like.shape[:-1], 1))

    def total(self, terms: Callable[[Block], Tree]) -> Tree:
        """Sum over the blocks of a function of each."""
        return self._over_devices(jax.lax.psum, self._local_total(terms))

    def largest(self, of: Callable[[Block], Float[Array, "*shape"]]) -> Float[Array, "*shape"]:
        """Elementwise maximum over the blocks of a function of each; it counts as a constant in derivatives."""

        def step(most: Array, operand: Any) -> tuple[Array, None]:
            return jnp.maximum(most, jax.lax.stop_gradient(of(self.read(operand)))), None

        most, _ = jax.lax.scan(step, jnp.full_like(self._shapes(of), -jnp.inf), self.blocks)
        return self._over_devices(jax.lax.pmax, most)

    def online(
        self,
        pivot: Callable[[Block], Float[Array, "*rows entries"]],
        start: ArrayLike,
        terms: Callable[[Block, Float[Array, "*rows 1"]], Tree],
        move: Callable[[Tree, Float[Array, "*rows 1"], Float[Array, "*rows 1"]], Tree],
    ) -> tuple[Float[Array, "*rows 1"], Tree]:
        """The largest `pivot` of each row, at least `start`, and the sum of `terms` at it, in one pass.

        `move(sums, old, new)` gives the sums at a new pivot from those at an old one. The pivot of a row without
        any, which is -inf, becomes 0. It counts as a constant in derivatives.
        """

        def moved(sums: Tree, old: Array, new: Array) -> Tree:
            # Until something is visible all sums are 0, and stay so from any pivot: here from where they go.
            return move(sums, jnp.where(old == -jnp.inf, new, old), new)

        def step(carry: tuple[Array, Tree], operand: Any) -> tuple[tuple[Array, Tree], None]:
            old, sums = carry
            block = self.read(operand)
            new = jnp.maximum(old, highest(block))
            sums = jax.tree.map(jnp.add, moved(sums, old, settled(new)), terms(block, settled(new)))
            return jax.lax.stop_gradient((new, sums)), None

        def highest(block: Block) -> Array:
            return jnp.max(pivot(block), -1, keepdims=True)

        begin = varying(jax.lax.stop_gradient(self.full(start)), self._shapes(highest))
        shapes = self._shapes(lambda block: terms(block, settled(begin)))
        (pivots, sums), _ = jax.lax.scan(step, (begin, _zeros(shapes)), self.blocks)
        settled_pivots = settled(pivots)  # finite: derivatives keep it
        sums = attach(sums, self._local_total(lambda block: terms(block, settled_pivots)))
        if self.axis_name is None:
            return settled_pivots, sums
        pivot_of_all = settled(jax.lax.pmax(pivots, self.axis_name))
        return pivot_of_all, jax.lax.psum(moved(sums, pivots, pivot_of_all), self.axis_name)

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        """A number in the type and rank of the logits."""
        return against(value, jnp.zeros((1,) * len(self.like.shape), self.like.dtype))

    def count(self) -> Float[Array, "*rows 1"]:
        """Number of visible entries of each row."""

        def of_block(block: Block) -> Array:
            seen = block._replace(logits=jnp.zeros(self.like.shape, self.like.dtype)) if block.finite else block
            return visible_count(visible(seen), -1)

        return self.total(of_block)

    def entropy(self) -> Float[Array, "*rows 1"]:
        """Entropy in nats of the softmax of each row."""

        def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
            return entropy_sums(below(visible(block), pivot))

        def move(sums: tuple[Array, Array], old: Array, new: Array) -> tuple[Array, Array]:
            gap = below(old, new)
            decay = jnp.exp(gap)
            # The product with the gap first: it is bounded, where that of the gap and a sum is not.
            return decay * sums[0], decay * sums[1] + (decay * gap) * sums[0]

        return entropy_of(self.online(visible, -jnp.inf, terms, move)[1])

    def _local_total(self, terms: Callable[[Block], Tree]) -> Tree:
        """The sum over the blocks of this device."""

        def of_one(operand: Any) -> Tree:
            return terms(self.read(operand))

        # A scan is a barrier already, so the common subexpressions may stay.
        of_one = jax.checkpoint(of_one, prevent_cse=False)

        def step(sums: Tree, operand: Any) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, sums, of_one(operand)), None

        return jax.lax.scan(step, _zeros(self._shapes(terms)), self.blocks)[0]

    def _shapes(self, terms: Callable[[Block], Tree]) -> Tree:
        """Shapes and types of a function of each block."""
        first = jax.tree.map(lambda array: array[0], self.blocks)
        return jax.eval_shape(lambda operand: terms(self.read(operand)), first)

    def _over_devices(self, reduce: Callable[[Tree, str], Tree], local: Tree) -> Tree:
        return local if self.axis_name is None else reduce(local, self.axis_name)


def visible(block: Block) -> Float[Array, "*rows entries"]:
    """Logits of a block in float32 (float64 stays), with -inf in the place of every masked entry."""
    return visible_or_lowest(block.logits, block.where)


def _zeros(shapes: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf), shapes)


class Attended(NamedTuple):
    """What the weights of rows in blocks weigh, and the weights of any block."""

    values: Tree
    weigh: Callable[[Block], Float[Array, "*rows entries"]]


class BlockEntries(NamedTuple):
    """The entries of one block as a map sees them: with -inf for the logit of a masked one."""

    logits: Float[Array, "*rows entries"]


@dataclasses.dataclass(frozen=True)
class ScaledRows:
    """Rows in blocks under a scale, as a map sees them. `beta` is None for β = 1.

    The logits of a shift-invariant map are multiplied by β only once a pivot is taken from them, as in `Normalizer`.
    Until then they are in the order of β·z: where β is negative, they have the other sign.
    """

    blocks: Blocks
    beta: Float[Array, "..."] | None
    shift_invariant: bool

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        return self.blocks.number(value)

    def entries(self, block: Block) -> BlockEntries:
        """The entries of a block."""
        z = visible(block)
        if self.beta is None:
            return BlockEntries(z)
        finite = jnp.isfinite(z)
        factor = self._sign(self.beta) if self.shift_invariant else self.beta
        return BlockEntries(jnp.where(finite, product(factor, jnp.where(finite, z, 0)), z))

    def below(self, logits: Float[Array, "*shape"], pivot: Float[Array, "*row"]) -> Float[Array, "*shape"]:
        """Scaled distance of such logits to a pivot: at most 0 if the pivot is the largest."""
        gap = below(logits, pivot)
        if self.beta is None or not self.shift_invariant:
            return gap
        return product(self.beta * self._sign(self.beta), gap)

    @staticmethod
    def _sign(beta: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(beta < 0, -1, 1).astype(beta.dtype)
