"""Rows that come block by block, under any normalizer whose map and scale need no whole row."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.normalizers.blocks import Attended, Block, Blocks, ScaledRows, Tree, visible
from softmax_jax.normalizers.masking import settled, visible_logits
from softmax_jax.normalizers.naming import bad_logits, name_of, naming, report
from softmax_jax.normalizers.normalizer import Normalizer


def streams(normalizer: Normalizer) -> bool:
    """Whether rows under this normalizer may come in blocks."""
    return hasattr(normalizer.map, "in_blocks") and (normalizer.scale is None or hasattr(normalizer.scale, "of_row"))


def check_streams(normalizer: Normalizer) -> None:
    """Raises ValueError unless rows under this normalizer may come in blocks."""
    if streams(normalizer):
        return
    part, method = ("scale", "of_row(row)") if hasattr(normalizer.map, "in_blocks") else ("map", "in_blocks(rows)")
    raise ValueError(
        f"the {part} {name_of(getattr(normalizer, part))} needs whole rows: give it a method {method}, "
        "or use implementation='dense'"
    )


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

    Raises ValueError for a map or a scale that needs whole rows.

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
    check_streams(normalizer)
    counts = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(blocks)}
    if len(counts) != 1 or counts & {(), (0,)}:
        raise ValueError(
            f"blocks has leading axes {sorted(counts)}; it must be a tree of arrays with one leading axis of the same "
            "length, at least 1: give the blocks along it"
        )
    if naming():
        _name_rows(normalizer, Blocks(read, blocks, axis_name))
    rows = Blocks(_capped(normalizer, read), blocks, axis_name)
    map, scale = cast(Any, normalizer.map), cast(Any, normalizer.scale)
    beta = None if scale is None else scale.of_row(rows)
    attended = map.in_blocks(ScaledRows(rows, beta, normalizer.map_is_shift_invariant))
    return Streamed(attended.values) if measure is None else _measured(rows, attended, measure)


def _capped(normalizer: Normalizer, read: Callable[[Any], Block]) -> Callable[[Any], Block]:
    """Blocks with their logits as scale and map read them."""
    if normalizer.cap is None:
        return read

    def read_capped(operand: Any) -> Block:
        block = read(operand)
        return block._replace(logits=normalizer.capped(visible_logits(block.logits)))

    return read_capped


def _measured(rows: Blocks, attended: Attended, measure: Callable[[Array], Tree]) -> Streamed:
    """With the sum of a function of the weights, and the largest of them, in one more pass."""

    def seen(block: Block) -> Array:
        weights = attended.weigh(block)
        if block.where is not None:
            weights = jnp.where(jnp.broadcast_to(block.where, weights.shape), weights, -jnp.inf)
        return jnp.max(weights, -1, keepdims=True)

    measured = rows.total(lambda block: measure(attended.weigh(block)))
    return Streamed(attended.values, measured, settled(rows.largest(seen)))


def _name_rows(normalizer: Normalizer, rows: Blocks) -> None:
    """Prints the rows with a visible NaN or +inf, in a pass of its own."""

    def count(block: Block) -> Tree:
        return tuple(jnp.sum(bad, -1, dtype=jnp.int32) for bad in bad_logits(visible(block)))

    device = 0 if rows.axis_name is None else jax.lax.axis_index(rows.axis_name)
    with_nan, with_inf = rows.total(count)
    report(normalizer, with_nan > 0, with_inf > 0, silent=device != 0)
