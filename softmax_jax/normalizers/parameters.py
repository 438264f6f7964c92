"""The common base of maps and scales: each is a class of numbers, and a pytree with these as its leaves.

So the numbers can be traced, differentiated and learned, and changing one recompiles nothing. A number is a scalar,
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
    """Declares a field of `Numbers`: a number, or several in a tuple.

    Arguments:
        default: The number unless given; None for one that may be left out.
        rule: In words, what `holds` requires of a finite number.
        holds: Returns whether a finite number is allowed.
        many: Whether the field is a tuple of numbers.
        learn: Whether the number trains with a model.
        of_query: Whether the number was published as linear in the query.

    Returns:
        A field of a dataclass, with the rule in its metadata.

    Raises:
        ValueError: The class is called with a number that breaks the rule; the declaration itself raises nothing.

    Example:
        >>> class Shifted(Numbers):
        ...     offset: float = number(default=1.0, rule="at least 0", holds=lambda offset: offset >= 0)
        >>> Shifted(offset=2).offset
        2.0
    """
    metadata = {"rule": rule, "holds": holds, "many": many, LEARN: learn, OF_QUERY: of_query}
    return dataclasses.field(default=default, metadata=metadata)


def identity(tree: Any) -> tuple[Any, ...]:
    """Returns a hashable key that two trees share if structure and leaf values are equal.

    Arrays of JAX and numpy count by shape, type and content. A traced number equals itself only.
    """

    def leaf_key(leaf: Any) -> Any:
        if checks.is_traced(leaf):
            return "traced", id(leaf)
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        known = np.asarray(leaf)
        return known.shape, str(known.dtype), known.tobytes()

    leaves, structure = jax.tree.flatten(tree)
    return structure, *map(leaf_key, leaves)


class ByNumbers:
    """Equal if structure and leaf values are equal, so that jit reuses the program."""

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and identity(self) == identity(other))

    def __hash__(self) -> int:
        return hash(identity(self))


@dataclass_transform(frozen_default=True, field_specifiers=(number, dataclasses.field))
class Numbers(ByNumbers):
    """Makes every subclass a frozen dataclass and a pytree.

    Numbers are checked when a user builds an object. They are not when JAX rebuilds it, because transformations put
    other things than numbers into the leaves: axes, labels, masks, zeros.
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

    def numbers_by_name(self) -> dict[str, Any]:
        """Returns the numbers by name, without those of a part such as the normalizer of `SoftCapped`."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, ByNumbers)}

    def __post_init__(self) -> None:
        for name, value in self.checked(vars(self)).items():
            # Set past the lock of a frozen dataclass, as its own __init__ does.
            object.__setattr__(self, name, tuple(map(_freeze, value)) if isinstance(value, tuple) else _freeze(value))

    @classmethod
    def checked(cls, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Returns numbers in the types of the fields. Raises TypeError or ValueError for one that breaks its rule."""
        fields = {field.name: field for field in fields_of(cls)}
        return {name: _check_field(fields[name], value) for name, value in numbers.items()}


def fields_of(numbers: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Returns the fields of a class of numbers, or of one of its objects."""
    return dataclasses.fields(numbers)


def marked(part: Any, mark: str) -> tuple[str, ...]:
    """Returns the names of the numbers of a map or a scale that have the mark `LEARN` or `OF_QUERY`."""
    fields = fields_of(part) if dataclasses.is_dataclass(part) else ()
    return tuple(field.name for field in fields if field.metadata.get(mark))


def _freeze(value: Any) -> Any:
    """Returns the value, a numpy array as a read-only copy: a compiled program may hold its numbers."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def _check_field(field: dataclasses.Field[Any], value: Any) -> Any:
    """Returns the number, or tuple of numbers, of a field; unchanged if the field was not made by `number`.

    Raises TypeError or ValueError for one that breaks its rule.
    """
    if not field.metadata or (value is None and field.default is None):
        return value
    rule, holds, many = (field.metadata[key] for key in ("rule", "holds", "many"))
    if not many:
        return _check_number(field.name, value, rule, holds, real=not isinstance(field.default, int))
    if not isinstance(value, tuple | list):
        raise WrongType(f"{field.name} is {checks.shown(value)}; it must be a tuple of numbers, such as (0.5, 6.0)")
    return tuple(_check_number(f"each of {field.name}", entry, rule, holds, real=True) for entry in value)


def _check_number(name: str, value: Any, rule: str, holds: Callable[[float], bool], *, real: bool) -> Any:
    """Returns a number, a whole one as a float where the field is real. Raises TypeError or ValueError by its rule."""
    if real and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # a whole number written for a real one is still to be differentiated
    checks.require(name, value, rule, holds)
    return value


PARTS = "map", "scale", "of"
"""Fields of a normalizer that hold its parts; the name of a number leaves them out."""


def number_names(normalizer: Any) -> list[str]:
    """Returns the name of each number of a normalizer: that of its field, an entry of a tuple with its position."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(normalizer)]
    named = [tuple(key for key in path if getattr(key, "name", None) not in PARTS) for path in paths]
    return [jax.tree_util.keystr(path, simple=True, separator="_") for path in named]


def initial_numbers(
    normalizer: Any, learn: tuple[str, ...], shape: tuple[int, ...] | None, of_query: tuple[str, ...] = ()
) -> dict[str, Float[Array, "..."]]:
    """Returns the numbers to learn by name, in float32.

    Arguments:
        normalizer: A normalizer.
        learn: Names of numbers, as `number_names` has them.
        shape: The shape of each number; its own if None.
        of_query: Names of numbers that are linear in the query; they are returned too.

    Raises:
        ValueError: For an unknown name.
        TypeError: For a text instead of a tuple.

    Example:
        >>> from softmax_jax import normalizer
        >>> initial_numbers(normalizer("ssmax(s=0.5)"), ("s",), (2, 1, 1))["s"].ravel()
        Array([0.5, 0.5], dtype=float32)
    """
    names = number_names(normalizer)
    known = [name for name in names if names.count(name) == 1]
    for argument, value in {"learn": learn, "of_query": of_query}.items():
        if isinstance(value, str):
            raise WrongType(f"{argument} is {value!r}; it must be a tuple of names, such as ({value!r},)")
    learned = tuple(dict.fromkeys((*learn, *of_query)))
    for name in learned:
        if name not in known:
            near = checks.did_you_mean(name, known)
            raise Refusal(
                f"cannot learn {name!r}: {near}the numbers of this normalizer are {', '.join(known) or 'none'}"
            )
    leaves = dict(zip(names, jax.tree.leaves(normalizer)))
    numbers = {name: jnp.asarray(leaves[name], jnp.float32) for name in learned}
    return numbers if shape is None else {name: jnp.broadcast_to(n, shape) for name, n in numbers.items()}


def with_numbers(normalizer: Any, numbers: Mapping[str, ArrayLike]) -> Any:
    """Returns the normalizer with these numbers replaced."""
    leaves, tree = jax.tree.flatten(normalizer)
    return tree.unflatten([numbers.get(name, leaf) for name, leaf in zip(number_names(normalizer), leaves)])
