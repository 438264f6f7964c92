"""Says where the entries of rows lie in an array: along axes of it, or in segments of its first axis.

The reductions that maps, scales, searches and measures share are here, so that these have one code path for both. A
number of each row is *spread* where it broadcasts against the entries. Along axes it has those at size 1, and is spread
as it is. Of segments there is one number each, and each entry gets that of its segment.
"""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped

from softmax_jax.normalizers.arithmetic import as_pivot, subtract_pivot
from softmax_jax.refusal import Refusal

Axis = int | tuple[int, ...]


class NeedsAxis(Refusal):
    """Says that a part reads the axis of a row, which segments do not have."""


class Layout(abc.ABC):
    """The reductions over rows, and their order."""

    @property
    @abc.abstractmethod
    def axis(self) -> Axis:
        """The axis, or axes, of a row. Raises `NeedsAxis` for segments."""

    @property
    @abc.abstractmethod
    def number_axis(self) -> Axis:
        """The axis, or axes, that a number of each row has at size 1 as users give it."""

    @abc.abstractmethod
    def total(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        """Returns the sum of each row."""

    @abc.abstractmethod
    def top(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        """Returns the largest value of each row, -inf for a row without entries."""

    @abc.abstractmethod
    def spread(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "*#shape"]:
        """Returns a number of each row so that it broadcasts against the entries."""

    @abc.abstractmethod
    def squeeze(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "..."]:
        """Returns a number of each row without axes of size 1."""

    @abc.abstractmethod
    def places(self, values: Shaped[Array, "*shape"]) -> Int[Array, "*#shape"]:
        """Returns the position of each entry in its row; in segments, among all entries."""

    @abc.abstractmethod
    def first_place(self, values: Bool[Array, "*shape"]) -> Int[Array, "*row"]:
        """Returns the position of the first entry of each row that is True, and one beyond all positions for none."""

    @abc.abstractmethod
    def head(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        """Returns the value of the first entry of each row."""

    @abc.abstractmethod
    def descending(self, values: Float[Array, "*shape"]) -> tuple[Float[Array, "..."], Int[Array, "..."], "Layout"]:
        """Returns the values of each row from the largest on, the rank of each in its row from 0, and their layout."""

    @abc.abstractmethod
    def joined(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*rows n"]:
        """Returns values with rows along the last axis; of segments as they are."""

    @abc.abstractmethod
    def parted(self, values: Shaped[Array, "*rows n"], shape: tuple[int, ...]) -> Shaped[Array, "*shape"]:
        """Returns values in the shape that they had before `joined`."""

    @abc.abstractmethod
    def after_joining(self) -> "Layout":
        """Returns the layout of what `joined` returns."""

    def any(self, values: Bool[Array, "*shape"]) -> Bool[Array, "..."]:
        """Returns whether a value of the row is True, without axes of size 1."""
        return self.squeeze(self.total(values)) > 0

    def first(self, values: Bool[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """Returns True at the first entry of each row that is True."""
        return values & (self.places(values) == self.spread(self.first_place(values)))

    def sum(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*#shape"]:
        """Returns the sum of each row, spread."""
        return self.spread(self.total(values))

    def largest(self, values: Float[Array, "*shape"]) -> Float[Array, "*#shape"]:
        """Returns the largest value of each row, spread; -inf for a row without entries."""
        return self.spread(self.top(values))

    def centre(self, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns logits less the maximum of their row: at most 0, and never below the most negative finite number.

        The lower bound keeps products with the result finite where two logits lie more than the largest
        float apart; exp() of it is 0 either way. The maximum counts as a constant in derivatives, so use
        this only where adding a constant to a row changes nothing.
        """
        # With f(z + c) = f(z) for any c, df = f'(z)·(dz - dm) = f'(z)·dz, as f' of a constant change dm is 0. For
        # softmax of (1, 0), w = (0.731, 0.269) and dw₀ = w₀(1 - w₀)(dz₀ - dz₁): 0.197 for dz = (1, 0), and 0 for the
        # maximum's own change dm = (1, 1).
        return subtract_pivot(logits, as_pivot(jax.lax.stop_gradient(self.largest(logits))))

    def divisor(self, values: Float[Array, "*shape"]) -> Float[Array, "*#shape"]:
        """Returns the sum of each row for use as a divisor: 1 where the sum is 0, which an empty row has."""
        total = self.sum(values)
        return jnp.where(total == 0, jnp.ones((), values.dtype), total)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Along(Layout):
    """Rows along an axis, or along several."""

    axis: Axis = -1  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def number_axis(self) -> Axis:
        return self.axis

    def total(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        return jnp.sum(values, self.axis, keepdims=True)

    def top(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        return jnp.max(values, self.axis, keepdims=True, initial=-jnp.inf)

    def spread(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "*#shape"]:
        return numbers

    def squeeze(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "..."]:
        return jnp.squeeze(numbers, self.axis)

    def places(self, values: Shaped[Array, "*shape"]) -> Int[Array, "*#shape"]:
        axes = [axis % values.ndim for axis in self._axes]
        sizes = [size if axis in axes else 1 for axis, size in enumerate(values.shape)]
        return jnp.arange(math.prod(sizes), dtype=jnp.int32).reshape(sizes)

    def first_place(self, values: Bool[Array, "*shape"]) -> Int[Array, "*row"]:
        places = self.places(values)
        return jnp.min(jnp.where(values, places, places.size), self.axis, keepdims=True, initial=places.size)

    def head(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        firsts = (
            slice(0, 1) if axis in [a % values.ndim for a in self._axes] else slice(None) for axis in range(values.ndim)
        )
        return values[tuple(firsts)]

    def descending(self, values: Float[Array, "*shape"]) -> tuple[Float[Array, "..."], Int[Array, "..."], Layout]:
        ordered = jnp.sort(self.joined(values), -1, descending=True)
        return ordered, LAST.places(ordered), LAST

    def joined(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*rows n"]:
        moved = jnp.moveaxis(values, self._axes, self._last)
        rows = moved.ndim - len(self._axes)
        return moved.reshape(*moved.shape[:rows], math.prod(moved.shape[rows:]))

    def parted(self, values: Shaped[Array, "*rows n"], shape: tuple[int, ...]) -> Shaped[Array, "*shape"]:
        moved = jnp.moveaxis(jnp.empty(shape, bool), self._axes, self._last).shape
        return jnp.moveaxis(values.reshape(moved), self._last, self._axes)

    def after_joining(self) -> Layout:
        return LAST

    @property
    def _axes(self) -> tuple[int, ...]:
        return self.axis if isinstance(self.axis, tuple) else (self.axis,)

    @property
    def _last(self) -> tuple[int, ...]:
        return tuple(range(-len(self._axes), 0))


LAST = Along(-1)
"""Rows along the last axis."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments(Layout):
    """Rows that are segments of the first axis: entry i belongs to the row `ids[i]`.

    The rows 0 and `count` - 1 hold the entries that belong to no segment; see `of`.
    """

    ids: Any
    """Whole numbers in int32; in a derivative what stands for their change."""
    count: int = dataclasses.field(metadata={"static": True})
    ascending: bool = dataclasses.field(default=False, metadata={"static": True})

    @classmethod
    def of(cls, ids: Integer[ArrayLike, " entries"], count: int, ascending: bool) -> "Segments":
        """Returns the layout of segments 0 to `count` - 1, with a row before and one after them for all other ids."""
        # So no id is out of bounds, and ids that ascend still do: of 2 segments (-3, 0, 1, 7) become (0, 1, 2, 3).
        return cls(jnp.clip(jnp.asarray(ids, jnp.int32), -1, count) + 1, count + 2, ascending)

    @property
    def axis(self) -> Axis:
        raise NeedsAxis("segments have no axis to reduce over: use row.sum, row.maximum and row.count instead")

    @property
    def number_axis(self) -> Axis:
        return 0

    def total(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        return self._reduce(jax.ops.segment_sum, values.astype(jnp.int32) if values.dtype == jnp.bool_ else values)

    def top(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        return self._reduce(jax.ops.segment_max, values)

    def spread(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "*#shape"]:
        return numbers.at[self.ids].get(mode="promise_in_bounds", indices_are_sorted=self.ascending)

    def squeeze(self, numbers: Shaped[Array, "*row"]) -> Shaped[Array, "..."]:
        return numbers[1:-1]

    def places(self, values: Shaped[Array, "*shape"]) -> Int[Array, "*#shape"]:
        return jnp.arange(values.shape[0], dtype=jnp.int32).reshape(-1, *(1,) * (values.ndim - 1))

    def first_place(self, values: Bool[Array, "*shape"]) -> Int[Array, "*row"]:
        places = jnp.where(values, self.places(values), values.shape[0])
        return jnp.minimum(self._reduce(jax.ops.segment_min, places), values.shape[0])

    def head(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        first = self.first(jnp.ones(values.shape, bool))
        return self.total(jnp.where(first, values, jnp.zeros((), values.dtype)))

    def descending(self, values: Float[Array, "*shape"]) -> tuple[Float[Array, "..."], Int[Array, "..."], Layout]:
        # The ids (0, 1, 0) with values (0, 5, 2) become the ids (0, 0, 1) with (2, 0, 5) and the ranks (0, 1, 0).
        ids = jnp.broadcast_to(self.ids.reshape(-1, *(1,) * (values.ndim - 1)), values.shape)
        ids, negative = jax.lax.sort((ids, -values), dimension=0, num_keys=2)
        lengths = self.total(jnp.ones(self.ids.shape, jnp.int32))
        ranks = self.places(values) - (jnp.cumsum(lengths) - lengths)[ids]
        return -negative, ranks, dataclasses.replace(self, ids=jnp.sort(self.ids), ascending=True)

    def joined(self, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*rows n"]:
        return values

    def parted(self, values: Shaped[Array, "*rows n"], shape: tuple[int, ...]) -> Shaped[Array, "*shape"]:
        return values

    def after_joining(self) -> Layout:
        return self

    def inside(self, ndim: int) -> Bool[Array, "..."]:
        """Returns True at the entries that belong to a segment, against logits of this rank."""
        return ((self.ids > 0) & (self.ids < self.count - 1)).reshape(-1, *(1,) * (ndim - 1))

    def _reduce(self, reduce: Any, values: Shaped[Array, "*shape"]) -> Shaped[Array, "*row"]:
        return reduce(values, self.ids, self.count, indices_are_sorted=self.ascending, mode="promise_in_bounds")
