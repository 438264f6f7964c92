"""The common base of maps and scales: each is a class of numbers, and a pytree with these as its leaves.

The numbers can so be traced, differentiated and learned, and changing one recompiles nothing. A number is a scalar,
or an array that broadcasts against the logits with the row's axis at size 1: one number per head of
(batch, heads, queries, keys) has the shape (heads, 1, 1).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal, WrongType

LEARN, OF_QUERY = "learn", "of_query"


def number(
    *,
    default: Any,
    rule: str = "such as 1.0",
    holds: Callable[[float], bool] = lambda value: True,
    many: bool = False,
    learn: bool = False,
    of_query: bool = False,
) -> Any:
    """A field of `Numbers`: a number, or `many` in a tuple; with the default None it may be left out.

    `rule` says in words what `holds` asks of a finite number. `learn` is for a number that trains with a model,
    `of_query` for one that is published as linear in the query.
    """
    said = {"rule": rule, "holds": holds, "many": many, LEARN: learn, OF_QUERY: of_query}
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
        names = [field.name for field in fields_of(cls)]

        def flatten(numbers: Any) -> tuple[list[tuple[Any, Any]], None]:
            return [(jax.tree_util.GetAttrKey(name), getattr(numbers, name)) for name in names], None

        def unflatten(_: None, leaves: Iterable[Any]) -> Any:
            rebuilt = object.__new__(cls)
            rebuilt.__dict__.update(zip(names, leaves))
            return rebuilt

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)

    def own_numbers(self) -> dict[str, Any]:
        """Returns the numbers by name, without those of a part such as the normalizer of `SoftCapped`."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, ByNumbers)}

    def __post_init__(self) -> None:
        for name, value in self.checked(vars(self)).items():
            # Set past the lock of a frozen dataclass, as its own __init__ does.
            object.__setattr__(self, name, tuple(map(_kept, value)) if isinstance(value, tuple) else _kept(value))

    @classmethod
    def checked(cls, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """These numbers in the types of the fields. Raises TypeError or ValueError for one that breaks its rule."""
        fields = {field.name: field for field in fields_of(cls)}
        return {name: _checked(fields[name], value) for name, value in numbers.items()}


def fields_of(numbers: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Returns the fields of a class of numbers, or of one of its objects."""
    return dataclasses.fields(numbers)


def marked(part: Any, mark: str) -> tuple[str, ...]:
    """Returns the names of the numbers of a map or a scale that have the mark `LEARN` or `OF_QUERY`."""
    fields = fields_of(part) if dataclasses.is_dataclass(part) else ()
    return tuple(field.name for field in fields if field.metadata.get(mark))


def _kept(value: Any) -> Any:
    """Returns the value, or a copy of a numpy array that nobody can change: a compiled program may hold its numbers."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The number, or tuple of numbers, of a field; as it is where the field was not made by `number`.

    Raises TypeError or ValueError for one that breaks its rule.
    """
    if not field.metadata or (value is None and field.default is None):
        return value
    rule, holds, many = (field.metadata[key] for key in ("rule", "holds", "many"))
    if not many:
        return _one(field.name, value, rule, holds, real=not isinstance(field.default, int))
    if not isinstance(value, tuple | list):
        raise WrongType(f"{field.name} is {checks.shown(value)}; it must be a tuple of numbers, such as (0.5, 6.0)")
    return tuple(_one(f"each of {field.name}", one, rule, holds, real=True) for one in value)


def _one(name: str, value: Any, rule: str, holds: Callable[[float], bool], *, real: bool) -> Any:
    if real and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # a whole number written for a real one is still to be differentiated
    checks.require(name, value, rule, holds)
    return value


PARTS = "map", "scale", "of"
"""What a normalizer is made of, which is no part of a number's name."""


def number_names(normalizer: Any) -> list[str]:
    """Returns the name of each number of a normalizer: that of its field, an entry of a tuple with its position."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(normalizer)]
    named = [tuple(key for key in path if getattr(key, "name", None) not in PARTS) for path in paths]
    return [jax.tree_util.keystr(path, simple=True, separator="_") for path in named]


def initial_numbers(
    normalizer: Any, learn: tuple[str, ...], shape: tuple[int, ...] | None, of_query: tuple[str, ...] = ()
) -> dict[str, Float[Array, "..."]]:
    """The numbers to learn by name, in float32, of this shape if one is given; those in `of_query` too.

    Raises ValueError for a name that is not one, TypeError for a name in the place of a tuple of them.

    >>> from softmax_jax import normalizer
    >>> initial_numbers(normalizer("ssmax(s=0.5)"), ("s",), (2, 1, 1))["s"].ravel()
    Array([0.5, 0.5], dtype=float32)
    """
    names = number_names(normalizer)
    known = [name for name in names if names.count(name) == 1]
    for what, given in {"learn": learn, "of_query": of_query}.items():
        if isinstance(given, str):
            raise WrongType(f"{what} is {given!r}; it must be a tuple of names, such as ({given!r},)")
    wanted = tuple(dict.fromkeys((*learn, *of_query)))
    for name in wanted:
        if name not in known:
            near = checks.did_you_mean(name, known)
            raise Refusal(
                f"cannot learn {name!r}: {near}the numbers of this normalizer are {', '.join(known) or 'none'}"
            )
    leaves = dict(zip(names, jax.tree.leaves(normalizer)))
    numbers = {name: jnp.asarray(leaves[name], jnp.float32) for name in wanted}
    return numbers if shape is None else {name: jnp.broadcast_to(n, shape) for name, n in numbers.items()}


def with_numbers(normalizer: Any, numbers: Mapping[str, ArrayLike]) -> Any:
    """The normalizer with these numbers in the place of its own."""
    leaves, tree = jax.tree.flatten(normalizer)
    return tree.unflatten([numbers.get(name, leaf) for name, leaf in zip(number_names(normalizer), leaves)])
