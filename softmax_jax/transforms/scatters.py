"""Reads scatters and gathers along the first axis: sums over segments, and numbers of each that its entries get.

Worked example, 4 entries of 3 segments, `jax.ops.segment_sum(e, ids, 3)[ids]` with ids (0, 2, 2, 0):

    i = broadcast_in_dim ids            (4, 1): the form that a scatter takes
    s = scatter-add 0 i e               (3,): s[ids[j]] += e[j], so (e0 + e3, 0, e1 + e2)
    n = select_n (lt ids 0) ids (add ids 3)     jnp's indexing counts negative ids from the end
    t = gather s (broadcast_in_dim n)   (4,): t[j] = s[ids[j]], the sum of its own segment

The ids behind both are the same value, so t is the sum of each entry's segment: what a row's sum with its axis kept at
size 1 is to a row along an axis.
"""

from typing import NamedTuple

from softmax_jax.transforms.exponents import same_computation
from softmax_jax.transforms.program import LAYOUTS, Node, Value, constant, unwrap


class SegmentIds(NamedTuple):
    """The segment of each entry of the first axis."""

    ids: Value
    number: int
    """The number of segments."""
    ascending: bool
    """True if the program says that the ids ascend."""
    from_end: bool
    """True if negative ids count from the last segment, as in `.at[ids].add`; else they are of none."""


def read_scatter(node: Node) -> SegmentIds | None:
    """Returns the segments that a scatter sums, or takes the maximum of; None for any other equation."""
    if node.name not in ("scatter-add", "scatter-max"):
        return None
    numbers, rank = node.params["dimension_numbers"], len(node.inputs[2].shape)
    # The first axis of the updates is scattered, and the others stay: one id for each entry of it.
    windows = tuple(numbers.update_window_dims) == tuple(range(1, rank))
    scattered = tuple(numbers.inserted_window_dims) == tuple(numbers.scatter_dims_to_operand_dims) == (0,)
    whole = node.inputs[0].shape[1:] == node.inputs[2].shape[1:]
    number = node.outputs[0].shape[0]
    ids, from_end = _unwrap_ids(node.inputs[1], number)
    if not (windows and scattered and whole and len(ids.shape) == 1) or "CLIP" in str(node.params["mode"]):
        return None
    return SegmentIds(ids, number, node.params["indices_are_sorted"], from_end)


def gathers_by(node: Node, ids: Value) -> bool:
    """Says whether an equation gives each entry the number of its segment."""
    if node.name != "gather":
        return False
    # s[ids] takes a slice (1, *rest) at each id, and drops its axis of size 1: (n,) ids give (n, *rest).
    numbers, rest = node.params["dimension_numbers"], node.inputs[0].shape[1:]
    windows = tuple(numbers.offset_dims) == tuple(range(1, 1 + len(rest)))
    gathered = tuple(numbers.collapsed_slice_dims) == tuple(numbers.start_index_map) == (0,)
    whole = tuple(node.params["slice_sizes"]) == (1, *rest) and not numbers.operand_batching_dims
    gather_ids, _ = _unwrap_ids(node.inputs[1], node.inputs[0].shape[0])
    return windows and gathered and whole and same_computation(gather_ids, ids)


def is_of_segments(value: Value, ids: Value) -> bool:
    """Says whether a value is the same for all entries of a segment, because it is gathered by their ids."""
    node = unwrap(value).producer
    return node is not None and gathers_by(node, ids)


def _unwrap_ids(indices: Value, size: int) -> tuple[Value, bool]:
    """Returns the ids of a scatter or gather as the model gave them, and whether negative ones count from the end.

    JAX lays ids out before it uses them. The size is that of the axis that they point into.
    """
    from_end = False
    # select_n (lt i 0) i (add i n) lays out as (n, 1): one index for each entry. What has one axis is the ids.
    while node := indices.producer:
        if node.name == "convert_element_type" or (node.name in LAYOUTS and len(indices.shape) > 1):
            indices = node.inputs[0]
        elif node.name == "select_n" and _wraps_negative(node, size):
            indices, from_end = node.inputs[1], True
        else:
            break
    return indices, from_end


def _wraps_negative(selection: Node, size: int) -> bool:
    """Says whether an equation is select_n (lt i 0) i (add i n), with n the size of the axis."""
    predicate, kept, *wrapped = selection.inputs
    test, shifted = predicate.producer, wrapped[0].producer if len(wrapped) == 1 else None
    return (
        test is not None
        and shifted is not None
        and (test.name, shifted.name) == ("lt", "add")
        and test.inputs[0] is shifted.inputs[0] is kept
        and (constant(test.inputs[1]), constant(shifted.inputs[1])) == (0, size)
    )
