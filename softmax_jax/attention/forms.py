"""The streaming form of each map: its weights from sums over blocks, without ever holding a whole row.

A form is a function of `ScaledRows` and of the map's numbers that returns `Found`. A map of one's own gets one by
`@streaming_form(map)`; what has none is dense only.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.attention.rows import Block, Rows, Tree, below, solution_moved, visible
from softmax_jax.normalizers import checks, maps, sparse
from softmax_jax.normalizers.masking import at_least, at_most, hide, settled
from softmax_jax.normalizers.naming import bad_logits, naming, report
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import OfRow


class Found(NamedTuple):
    """What a pass over the blocks found: what the weights weigh, and the weights of any block."""

    attended: Tree
    weigh: Callable[[Block], Float[Array, "*rows entries"]]


@dataclasses.dataclass(frozen=True)
class ScaledRows:
    """Rows under a scale. `beta` is None for β = 1.

    The logits of a shift-invariant map are multiplied by β only once a pivot is taken from them, as in `Normalizer`.
    """

    rows: Rows
    beta: Float[Array, "..."] | None
    shift_invariant: bool

    @property
    def sign(self) -> Float[Array, "..."]:
        """-1 where β reverses the order of the logits."""
        assert self.beta is not None
        return jnp.where(self.beta < 0, -1, 1).astype(self.beta.dtype)

    def logits(self, block: Block) -> Float[Array, "*rows entries"]:
        """Logits of a block, with -inf where an entry is masked; under a shift-invariant map in the order of β·z."""
        z = visible(block)
        if self.beta is None:
            return z
        finite = jnp.isfinite(z)
        kept = jnp.where(finite, z, 0)
        scaled = kept * self.sign if self.shift_invariant else _product(self.beta, kept)
        return jnp.where(finite, scaled, z)

    def below(self, logits: Float[Array, "*shape"], pivot: Float[Array, "*row"]) -> Float[Array, "*shape"]:
        """Scaled distance of such logits to a pivot: at most 0 if the pivot is the largest."""
        gap = below(logits, pivot)
        return gap if self.beta is None or not self.shift_invariant else _product(self.beta * self.sign, gap)

    def quotient(
        self,
        terms: Callable[[Block, Float[Array, "*rows 1"]], tuple[Array, Array]],
        divisor: Callable[[Float[Array, "*rows 1"], Float[Array, "*rows 1"]], Array],
        *,
        decay: Callable[[Array, Array], Array],
        start: ArrayLike = -jnp.inf,
        pivot: Callable[[Block], Float[Array, "*rows entries"]] | None = None,
    ) -> Found:
        """One pass for weights that are a quotient of terms relative to a pivot, the largest logit unless given.

        `terms(block, pivot)` gives the numerators and what the divisor sums; `divisor(sum, pivot)` what divides;
        `decay(old, new)` the factor by which the terms change with the pivot.
        """

        def sums(block: Block, pivot: Array) -> Tree:
            numerators, shares = terms(block, pivot)
            return block.attend(numerators), shares.sum(-1, keepdims=True)

        def move(sums: Tree, old: Array, new: Array) -> Tree:
            factor = decay(old, new)
            return jax.tree.map(lambda leaf: leaf * factor, sums)

        pivots, (attended, shares) = self.rows.online(pivot or self.logits, start, sums, move)
        total = divisor(shares, pivots)
        total = jnp.where(total == 0, jnp.ones((), total.dtype), total)
        attended = jax.tree.map(lambda leaf: leaf / total, attended)
        return Found(attended, lambda block: terms(block, pivots)[0] / total)


def _product(beta: Float[Array, "..."], logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """β·z, clipped as in `Normalizer`."""
    largest = float(jnp.finfo(logits.dtype).max)
    return at_most(at_least(jnp.clip(beta, -largest, largest) * logits, -largest), largest)


Form = Callable[..., Found]
FORMS: dict[maps.Map, Form] = {}
"""The streaming form of each map."""


def streaming_form(map: maps.Map) -> Callable[[Form], Form]:
    """Makes the decorated function the streaming form of a map, for which it is called as `form(rows, **numbers)`."""
    checks.function("map", map, "softmax_jax.softmax")

    def keep(form: Form) -> Form:
        FORMS[map] = form
        return form

    return keep


def has_streaming_form(normalizer: Normalizer) -> bool:
    """Whether rows under this normalizer may come in blocks: whether its map has a form, and its scale `of_row`."""
    return _form_of(normalizer) is not None and (normalizer.scale is None or hasattr(normalizer.scale, "of_row"))


def searches(normalizer: Normalizer) -> bool:
    """Whether the form of the map reads the blocks many times, in search of a threshold."""
    return _form_of(normalizer) in SEARCHES


def check_streaming_form(normalizer: Normalizer) -> None:
    """Raises ValueError unless rows under this normalizer may come in blocks."""
    if _form_of(normalizer) is None:
        name = getattr(_function(normalizer), "__name__", repr(normalizer.map))
        raise ValueError(
            f"the map {name} has no streaming form: give it one with @streaming_form, or use implementation='dense'"
        )
    if not has_streaming_form(normalizer):
        raise ValueError(
            f"the scale {type(normalizer.scale).__name__} needs whole rows: give it a method of_row(row), "
            "or use implementation='dense'"
        )


def _function(normalizer: Normalizer) -> Any:
    return getattr(normalizer.map, "func", normalizer.map)


def _form_of(normalizer: Normalizer) -> Form | None:
    return FORMS.get(_function(normalizer))


class Streamed(NamedTuple):
    """What the weights weigh, and, if it was asked for, sums of functions of them and the largest of each row."""

    attended: Tree
    measured: Tree | None = None
    largest: Float[Array, "*rows 1"] | None = None


def stream(
    normalizer: Normalizer,
    read: Callable[[Any], Block],
    blocks: Any,
    *,
    measure: Callable[[Float[Array, "*rows entries"]], Tree] | None = None,
    axis_name: str | None = None,
) -> Streamed:
    """What the weights of a normalizer weigh, of rows that come block by block, in the memory of one block.

    `read` is called with each index into the leading axis of the arrays in `blocks`, several times, within `jit`,
    and gives the `Block` there. Blocks have one size; what fills the last one up has to be masked. Both modes of
    differentiation reach everything that `read` is computed from, and the numbers of the normalizer.

    With `measure`, one more pass gives the sum over the blocks of this function of the final weights, such as
    that of their entropy, and the largest visible weight of each row, 0 for an empty row. Within `shard_map`,
    `axis_name` names the axis of the mesh over which the blocks are divided.

    Raises ValueError for a map or a scale without a streaming form.

    >>> from softmax_jax import normalizer
    >>> logits, values = jnp.arange(6.0).reshape(3, 1, 2), jnp.ones((3, 1, 2, 5))  # three blocks of two entries
    >>> def read(block):
    ...     z, v = block
    ...     return Block(z, lambda weights: jnp.einsum("rn,rnf->rf", weights, v))
    >>> measure = lambda weights: jax.scipy.special.entr(weights).sum(-1)
    >>> result = stream(normalizer("sparsemax"), read, (logits, values), measure=measure)
    >>> result.attended, result.measured, result.largest
    (Array([[1., 1., 1., 1., 1.]], dtype=float32), Array([0.], dtype=float32), Array([[1.]], dtype=float32))
    """
    if not isinstance(normalizer, Normalizer):
        raise TypeError(
            f"normalizer is {checks.shown(normalizer)}; it must be a Normalizer: build one by name with "
            "softmax_jax.normalizer"
        )
    check_streaming_form(normalizer)
    checks.function("read", read, "one from an index into the blocks to a Block")
    if measure is not None:
        checks.function("measure", measure, "one of the weights of a block")
    counts = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(blocks)}
    if len(counts) != 1 or counts & {(), (0,)}:
        raise ValueError(
            f"blocks has leading axes {sorted(counts)}; it must be a tree of arrays with one leading axis of the same "
            "length, at least 1: give the blocks along it"
        )
    rows = Rows(read, blocks, axis_name)
    if naming():
        _name_rows(normalizer, rows)
    beta = None if normalizer.scale is None else cast(OfRow, normalizer.scale).of_row(rows)
    scaled = ScaledRows(rows, beta, getattr(_function(normalizer), "shift_invariant", False))
    form = _form_of(normalizer)
    assert form is not None
    found = form(scaled, **getattr(normalizer.map, "keywords", {}))
    if measure is None:
        return Streamed(found.attended)

    def seen(block: Block) -> Array:
        weights = found.weigh(block)
        if block.where is not None:
            weights = jnp.where(jnp.broadcast_to(block.where, weights.shape), weights, -jnp.inf)
        return jnp.max(weights, -1, keepdims=True)

    return Streamed(found.attended, rows.total(lambda block: measure(found.weigh(block))), settled(rows.largest(seen)))


def _name_rows(normalizer: Normalizer, rows: Rows) -> None:
    """Prints the rows with a visible NaN or +inf, in a pass of its own."""

    def count(block: Block) -> Tree:
        return tuple(jnp.sum(found, -1, dtype=jnp.int32) for found in bad_logits(visible(block)))

    device = 0 if rows.axis_name is None else jax.lax.axis_index(rows.axis_name)
    with_nan, with_inf = rows.total(count)
    report(normalizer, with_nan > 0, with_inf > 0, silent=device != 0)


def _exponentials(rows: ScaledRows, block: Block, pivot: Float[Array, "*rows 1"]) -> Float[Array, "*rows entries"]:
    """exp(z - pivot), exactly 0 where no weight goes."""
    z = rows.logits(block)
    return jnp.where(z != -jnp.inf, jnp.exp(rows.below(z, pivot)), 0)


@streaming_form(maps.softmax)
def _softmax(rows: ScaledRows) -> Found:
    def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
        exponentials = _exponentials(rows, block, pivot)
        return exponentials, exponentials

    return rows.quotient(terms, lambda total, _: total, decay=lambda old, new: jnp.exp(rows.below(old, new)))


@streaming_form(maps.shifted_softmax)
def _shifted_softmax(rows: ScaledRows, *, s: ArrayLike = 1.0) -> Found:
    return _softmax(rows)  # the shift cancels


@streaming_form(maps.softmax1)
def _softmax1(rows: ScaledRows) -> Found:
    return _sink_softmax(rows)


@streaming_form(maps.sink_softmax)
def _sink_softmax(rows: ScaledRows, *, sink: ArrayLike = 0.0) -> Found:
    s = rows.rows.number(sink)

    def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
        exponentials = _exponentials(rows, block, pivot)
        return exponentials, exponentials

    def divisor(total: Array, pivot: Array) -> Array:
        return total + jnp.exp(s - pivot)

    return rows.quotient(terms, divisor, decay=lambda old, new: jnp.exp(below(old, new)), start=sink)


@streaming_form(maps.softpick)
def _softpick(rows: ScaledRows, *, eps: ArrayLike = 1e-6) -> Found:
    def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
        difference = hide(maps.less_one(rows.logits(block), pivot), block.where)
        return jnp.where(difference > 0, difference, 0), jnp.abs(difference)

    def divisor(total: Array, _: Array) -> Array:
        return total + rows.rows.number(eps)

    return rows.quotient(terms, divisor, decay=lambda old, new: jnp.exp(below(old, new)), start=0.0)


@streaming_form(maps.hardmax)
def _hardmax(rows: ScaledRows) -> Found:
    def is_largest(logits: Array, pivot: Array) -> Array:
        return 1 + jnp.sign(rows.below(logits, pivot))

    def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
        z = rows.logits(block)
        largest = jnp.where(z != -jnp.inf, is_largest(z, pivot), 0)
        return largest, largest

    return rows.quotient(terms, lambda total, _: total, decay=is_largest)


@streaming_form(maps.signed_l1)
def _signed_l1(rows: ScaledRows) -> Found:
    def logits(block: Block) -> Array:
        z = rows.logits(block)
        return jnp.where(z == -jnp.inf, 0, z)

    def size(block: Block) -> Array:
        sizes = jnp.abs(logits(block))
        return jnp.where(sizes == jnp.inf, sizes, at_most(sizes, 1e37))  # its reciprocal is not subnormal

    def terms(block: Block, pivot: Array) -> tuple[Array, Array]:
        ratio = logits(block) / pivot
        return ratio, jnp.abs(ratio)

    def divisor(total: Array, pivot: Array) -> Array:
        return total + 1 / pivot

    return rows.quotient(terms, divisor, decay=lambda old, new: old / new, start=1.0, pivot=size)


@streaming_form(sparse.sparsemax)
def _sparsemax(rows: ScaledRows) -> Found:
    return _threshold(rows, sparse.excess(1), rows.rows.number(1.0))


@streaming_form(sparse.entmax15)
def _entmax15(rows: ScaledRows) -> Found:
    return _threshold(rows, sparse.excess(2), rows.rows.number(0.5))


@streaming_form(sparse.entmax)
def _entmax(rows: ScaledRows, *, alpha: ArrayLike = 1.5) -> Found:
    return _threshold(rows, sparse.TSALLIS, sparse.away_from_zero(rows.rows.number(alpha) - 1))


@streaming_form(sparse.stieltjes)
def _stieltjes(rows: ScaledRows, *, q: ArrayLike = 4.0) -> Found:
    power = rows.rows.number(q)
    return _threshold(rows, sparse.TSALLIS, sparse.away_from_zero(-1 / power), power)


def _threshold(
    rows: ScaledRows, family: sparse.Family, eps: Float[Array, "..."], factor: Float[Array, "..."] | None = None
) -> Found:
    """A pass for the maximum, one for each step of the search for the threshold, and one for the weights there."""
    places = rows.rows.largest(rows.logits)
    pivot = settled(jnp.max(places, -1, keepdims=True))

    def excess(logits: Array) -> Array:
        gap = rows.below(logits, pivot)
        return jnp.where(logits != -jnp.inf, gap if factor is None else factor * gap, -jnp.inf)

    def total(threshold: Array) -> Array:
        def weights(block: Block) -> Array:
            return family.weigh(excess(rows.logits(block)), threshold, fixed).sum(-1, keepdims=True)

        return jax.lax.stop_gradient(rows.rows.total(weights))

    # The search starts at the threshold of the largest entry at each place of the blocks.
    fixed = jax.lax.stop_gradient(eps)
    part = jax.lax.stop_gradient(excess(places))
    threshold, reached = sparse.find_threshold(family, fixed, total, rows.rows.entries, part)
    threshold, reached = jax.lax.stop_gradient((threshold, reached))

    def weigh(block: Block, moved: Array) -> Array:
        return sparse.weights_at(family, threshold, eps, excess(rows.logits(block)), moved)

    still = jnp.zeros_like(threshold)

    def slope(block: Block) -> Array:
        return sparse.derivatives(weigh(block, still), eps)[0].sum(-1, keepdims=True)

    # Two sums, of which a derivative needs the value of one and the derivative of the other.
    reached_still = rows.rows.total(lambda block: weigh(block, still).sum(-1, keepdims=True))
    moved = solution_moved(reached_still, rows.rows.total(slope))
    attended = rows.rows.total(lambda block: block.attend(weigh(block, moved)))
    return Found(jax.tree.map(lambda leaf: leaf / reached, attended), lambda block: weigh(block, moved) / reached)


@streaming_form(sparse.top_k_softmax)
def _top_k_softmax(rows: ScaledRows, *, k: ArrayLike = 8) -> Found:
    """A pass for the maximum, one for each step of the search for the k-th largest, and one for the weights."""
    rank = sparse.whole_ranks(k)
    rank = rank.reshape((1,) * (len(rows.rows.like.shape) - rank.ndim) + rank.shape)
    places = rows.rows.largest(rows.logits)
    pivot = settled(jnp.max(places, -1, keepdims=True))

    def ranked(logits: Array) -> Array:
        # Rounding may make logits tie once they are scaled; which are among the k largest is asked of those.
        return logits if rows.beta is None else jnp.where(logits != -jnp.inf, rows.below(logits, pivot), -jnp.inf)

    def count(threshold: Array) -> Array:
        def reach(block: Block) -> Array:
            return jnp.sum(ranked(rows.logits(block)) >= threshold, -1, keepdims=True, dtype=jnp.int32)

        return rows.rows.total(reach)

    of_part = jax.lax.stop_gradient(ranked(places))
    low, high = sparse.kth_largest(of_part, rank, -1), jnp.max(of_part, -1, keepdims=True)
    least = jax.lax.stop_gradient(sparse.find_kth_largest(count, rank, low, high))

    def exponentials(block: Block) -> Array:
        return jnp.where(ranked(rows.logits(block)) < least, 0, _exponentials(rows, block, pivot))

    def sums(block: Block) -> Tree:
        numerators = exponentials(block)
        return block.attend(numerators), numerators.sum(-1, keepdims=True)

    attended, divisor = rows.rows.total(sums)
    divisor = jnp.where(divisor == 0, 1, divisor)
    return Found(jax.tree.map(lambda leaf: leaf / divisor, attended), lambda block: exponentials(block) / divisor)


SEARCHES = _sparsemax, _entmax15, _entmax, _stieltjes, _top_k_softmax
