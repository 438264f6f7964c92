"""What maps and scales have in common: each is a class of numbers, and a pytree with these as its leaves.

The numbers can so be traced, differentiated and learned, and changing one recompiles nothing. A number is a scalar,
or an array that broadcasts against the logits with the row's axis at size 1: one number per head of
(batch, heads, queries, keys) has the shape (heads, 1, 1).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, dataclass_transform

import jax
import numpy as np

from softmax_jax.normalizers import checks

SLIDER, LEARN, OF_QUERY = "slider", "learn", "of_query"


def number(
    *,
    default: Any,
    rule: str = "such as 1.0",
    holds: Callable[[float], bool] = lambda value: True,
    many: bool = False,
    learn: bool = False,
    of_query: bool = False,
    slider: tuple[float, float] | None = None,
) -> Any:
    """A field of `Numbers`: a number, or `many` in a tuple; with the default None it may be left out.

    `rule` says in words what `holds` asks of a finite number. `learn` is for a number that trains with a model,
    `of_query` for one that is published as linear in the query.
    `slider` is the range in which a page may let it move.
    """
    said = {"rule": rule, "holds": holds, "many": many, LEARN: learn, OF_QUERY: of_query, SLIDER: slider}
    return dataclasses.field(default=default, metadata=said)


def identity(tree: Any) -> tuple[Any, ...]:
    """Returns what two trees share if any program gives the same for both: structure, and each number by its value.

    Arrays of JAX and numpy count by shape, type and content. A traced number is like itself only.
    """

    def of_leaf(leaf: Any) -> Any:
        if checks.is_traced(leaf):
            return "traced", id(leaf)
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        known = np.asarray(leaf)
        return known.shape, str(known.dtype), known.tobytes()

    leaves, structure = jax.tree.flatten(tree)
    return structure, *map(of_leaf, leaves)


class ByNumbers:
    """A pytree that equals another of its type where a program of one is a program of the other."""

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and identity(self) == identity(other))

    def __hash__(self) -> int:
        return hash(identity(self))


@dataclass_transform(frozen_default=True, field_specifiers=(number, dataclasses.field))
class Numbers(ByNumbers):
    """Makes every class that derives from it a frozen dataclass and a pytree.

    Numbers are checked when a user builds one. They are not when JAX rebuilds one, because transformations put other
    things than numbers into the leaves: axes, labels, masks, zeros.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]

        def flatten(numbers: Any) -> tuple[list[tuple[Any, Any]], None]:
            return [(jax.tree_util.GetAttrKey(name), getattr(numbers, name)) for name in names], None

        def unflatten(_: None, leaves: Iterable[Any]) -> Any:
            rebuilt = object.__new__(cls)
            rebuilt.__dict__.update(zip(names, leaves))
            return rebuilt

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)

    def __post_init__(self) -> None:
        for name, value in self.checked(vars(self)).items():
            # Set past the lock of a frozen dataclass, as its own __init__ does.
            object.__setattr__(self, name, tuple(map(_kept, value)) if isinstance(value, tuple) else _kept(value))

    @classmethod
    def checked(cls, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """These numbers in the types of the fields. Raises TypeError or ValueError for one that breaks its rule."""
        fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
        return {name: _checked(fields[name], value) for name, value in numbers.items()}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The numbers by name, with what they are unless given."""
        return {field.name: field.default for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]

    @classmethod
    def marked(cls, mark: str) -> dict[str, Any]:
        """The numbers that have a mark, `LEARN`, `OF_QUERY` or `SLIDER`, and what it says."""
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        return {field.name: field.metadata[mark] for field in fields if field.metadata.get(mark)}


def _kept(value: Any) -> Any:
    """Returns the value, or a copy of a numpy array that nobody can change: a compiled program may hold its numbers."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The number, or tuple of numbers, of a field; as it is where the field was not made by `number`."""
    if not field.metadata or (value is None and field.default is None):
        return value
    rule, holds = field.metadata["rule"], field.metadata["holds"]
    if not field.metadata["many"]:
        return _one(field.name, value, rule, holds, real=not isinstance(field.default, int))
    if not isinstance(value, tuple | list):
        raise TypeError(f"{field.name} is {checks.shown(value)}; it must be a tuple of numbers, such as (0.5, 6.0)")
    return tuple(_one(f"each of {field.name}", one, rule, holds, real=True) for one in value)


def _one(name: str, value: Any, rule: str, holds: Callable[[float], bool], *, real: bool) -> Any:
    if real and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # a whole number written for a real one is still to be differentiated
    checks.require(name, value, rule, holds)
    return value
