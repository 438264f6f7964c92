"""Checks arguments, and refuses in one line that names the value, the rule and the remedy.

What is checked is known before anything is compiled: types, shapes, and the values of plain and numpy numbers. The
values of JAX arrays are not read, because reading one would wait for the device and fail where it is traced.
"""

import ast
import difflib
import functools
import math
import operator
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.refusal import Refusal, WrongType

WIDTH = 80
"""Most characters of a value that a line shows."""
LARGEST = 1e37
"""No number may be larger in size: it would be infinite in float32, or its product with another."""
LEAST_START = 3
"""Letters of the start of a name that are enough to suggest it."""
LONGEST_TEXT = 5000
"""Characters of a text that names something, the path of a file among its numbers included."""
PLURAL = ("logits", "weights", "targets", "values", "parameters")


def did_you_mean(name: Any, known: Iterable[str], most: int = 1) -> str:
    """Returns a question that offers the nearest known names, or one with the same start; empty if there are none.

    >>> did_you_mean("sofmax", ["softmax", "ssmax"]), did_you_mean("SSMax", ["softmax", "ssmax"]), did_you_mean("x", [])
    ("did you mean 'softmax'? ", "did you mean 'ssmax'? ", '')
    >>> did_you_mean("cosin", ["constant_schedule", "cosine_decay_schedule"])
    "did you mean 'cosine_decay_schedule'? "
    >>> did_you_mean("sofmax", ["softmax", "softmax1", "ssmax", "sigmoid"], most=3)
    "did you mean 'softmax', 'softmax1' or 'ssmax'? "
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    start = str(name).lower()
    close = difflib.get_close_matches(start, by_lower, n=most)
    close += [candidate for candidate in by_lower if len(start) >= LEAST_START and candidate.startswith(start)]
    *others, last = [repr(by_lower[candidate]) for candidate in dict.fromkeys(close)][:most] or [""]
    return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}? " if close else ""


def expression(text: str) -> ast.expr:
    """Returns the syntax of one line such as `name(number=1.0)`. Raises ValueError for any other text.

    >>> expression("ssmax(s=0.43)").func.id
    'ssmax'
    """
    line = text.strip()
    try:
        syntax = ast.parse(line, mode="eval").body if len(line) < LONGEST_TEXT else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two where it is nested too deeply
        syntax = None
    if syntax is None or syntax.end_lineno != 1 or syntax.end_col_offset != len(line.encode()):  # a comment follows
        raise Refusal(f"cannot read {shown(text)}")
    return syntax


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Raises ValueError, with the nearest name, unless the value is one of those known."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise Refusal(
            f"{name} is {shown(value)}; {did_you_mean(value, names)}it must be one of {', '.join(map(repr, names))}"
        )


def shown(value: Any) -> str:
    r"""Describes a value in few words on one line: an array by type and shape, a function by name.

    >>> shown(jnp.zeros((2, 3))), shown(" a\nb"), shown(functools.partial(shown, 1))
    ('a float32 array of shape (2, 3)', "' a\\nb'", 'the function shown')
    """
    if is_array(value):
        dtype = str(value.dtype if hasattr(value, "dtype") else jnp.result_type(value))
        return f"{'an' if dtype[0] in 'aeiou' else 'a'} {dtype} array of shape {jnp.shape(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if isinstance(value, functools.partial):
        return shown(value.func)
    short = reprlib.Repr()
    short.maxstring = short.maxother = WIDTH
    return " ".join(short.repr(value).split())


def is_array(value: Any) -> bool:
    """Returns True for an array of JAX or numpy, and for an object that acts as one, such as a parameter of Flax."""
    known = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    return isinstance(value, known) or hasattr(type(value), "__jax_array__")


def is_traced(value: Any) -> bool:
    """Returns True if the numbers of an array are not known yet."""
    return isinstance(value, Tracer)


def has_axes(tree: Any) -> bool:
    """Returns True if a leaf of the tree is an array with axes."""
    return any(is_array(leaf) and jnp.ndim(leaf) > 0 for leaf in jax.tree.leaves(tree))


def is_known(array: Any) -> bool:
    """Returns True if the numbers of an array can be read at once."""
    return isinstance(array, np.ndarray) or (
        isinstance(array, jax.Array) and not is_traced(array) and array.is_fully_addressable
    )


def is_jax(value: Any) -> bool:
    """Returns True for an array whose numbers these checks do not read."""
    return is_array(value) and not isinstance(value, np.ndarray | np.generic)


def is_whole(value: Any) -> bool:
    """Returns True for a whole number that is known, but not for True or False."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool | np.bool_)


def require(name: str, number: Any, rule: str, holds: Callable[[float], bool]) -> None:
    """Raises unless a number is real, and, if it is plain or numpy's, finite and by the rule.

    TypeError for what is no number, ValueError for one that is not finite or breaks the rule.
    """
    real = (
        jnp.issubdtype(jnp.result_type(number), jnp.floating) or jnp.issubdtype(jnp.result_type(number), jnp.integer)
        if is_array(number)
        else isinstance(number, int | float) and not isinstance(number, bool)
    )
    plain(name, number)
    if not real:
        raise WrongType(f"{name} is {shown(number)}; it must be a number {rule}")
    if is_jax(number):
        return
    for value in np.ravel(np.asarray(number)).tolist():
        if not (abs(value) < math.inf and holds(value)):
            raise Refusal(f"{name} is {shown(value)}; it must be a finite number {rule}")
        if abs(value) > LARGEST:
            raise Refusal(
                f"{name} is {shown(value)}; it must be at most {LARGEST:g} in size, and a finite number {rule}"
            )


def finite(name: str, number: Any) -> None:
    """Raises unless a number is real and, as far as it is known, finite."""
    require(name, number, "such as 1.0", lambda _: True)


def whole(name: str, value: Any, least: int, example: int, most: int | None = None) -> None:
    """Raises TypeError for what is no whole number, ValueError for one out of bounds."""
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    if not is_whole(value):
        raise WrongType(f"{name} is {shown(value)}; it must be a whole number {bounds}, such as {example}")
    if value < least or (most is not None and value > most):
        raise Refusal(f"{name} is {shown(operator.index(value))}; it must be {bounds}, such as {example}")


def whole_each(name: str, value: Any, least: int, example: int) -> None:
    """Raises TypeError for what is no whole number or array of them, ValueError for one that is known and too small."""
    if not (is_array(value) and jnp.issubdtype(jnp.result_type(value), jnp.integer)):
        whole(name, value, least, example)
    elif is_jax(value):
        return
    for number in np.ravel(np.asarray(value)).tolist():
        whole(name, number, least, example)


def plain(name: str, array: Any) -> None:
    """Raises TypeError for a masked array of numpy."""
    if isinstance(array, np.ma.MaskedArray):
        raise WrongType(
            f"{name} {'are' if name in PLURAL else 'is'} a masked array of numpy, of which the mask would be lost: "
            "give x.filled(0), and what it hides as where=~x.mask, or mask=~x.mask in attention"
        )


def floats(name: str, array: Any) -> None:
    """Raises TypeError unless a value is an array of real floating point."""
    plain(name, array)
    are, have, they = ("are", "have", "they") if name in PLURAL else ("is", "has", "it")
    if not is_array(array):
        raise WrongType(
            f"{name} {are} {shown(array)}; {they} must be an array of floating point: call jnp.asarray first"
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise WrongType(
            f"{name} {have} dtype {array.dtype}; {they} must be floating point: call .astype('float32') first"
        )


def array(name: str, value: Any, also: Any = ()) -> Any:
    """Returns a value that is an array, or of the types in `also`, as an array in a type that JAX has here.

    An array of numpy stays one, because JAX would compile a program to convert it. Raises TypeError for other values,
    and ValueError for whole numbers that the type does not hold.
    """
    plain(name, value)
    if not is_array(value) and not isinstance(value, also):
        raise WrongType(f"{name} is {shown(value)}; it must be an array: call jnp.asarray first")
    if any(map(is_jax, jax.tree.leaves(value))):
        return value if isinstance(value, jax.ShapeDtypeStruct) else jnp.asarray(value)
    value = np.asarray(value)
    converted = value.astype(jnp.result_type(value))
    if value.dtype.kind in "iu" and (changed := converted != value).any():
        raise Refusal(f"{name} holds {value[changed][0]}, and JAX has {converted.dtype} here: give smaller numbers")
    return converted


def flag(name: str, value: Any) -> None:
    """Raises TypeError unless a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise WrongType(f"{name} is {shown(value)}; it must be True or False")


def indices(name: str, numbers: Any) -> Any:
    """Returns whole numbers as an array, from one or a list of them. Raises TypeError for other types."""
    values = array(name, numbers, int | list | tuple)
    if not jnp.issubdtype(values.dtype, jnp.integer):
        raise WrongType(f"{name} has dtype {values.dtype}; it must hold whole numbers: call .astype('int32') first")
    return values


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Returns True if an array of one shape broadcasts to the full shape."""
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    return len(padded) == len(full) and all(size in (1, whole) for size, whole in zip(padded, full))


def same_shape(name: str, array: Any, like: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless an array has the shape of another."""
    if jnp.shape(array) != shape:
        raise Refusal(f"{name} has shape {jnp.shape(array)}; it must be {shape}, that of {like}: broadcast it first")


def per_row(name: str, number: Any, shape: tuple[int, ...], axis: int | tuple[int, ...]) -> None:
    """Raises ValueError unless a number, or array of them, is one for each row of logits of this shape."""
    number_shape = jnp.shape(number)
    padded = (1,) * (len(shape) - len(number_shape)) + tuple(number_shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    if len(padded) > len(shape) or not broadcasts(number_shape, shape) or any(padded[each] != 1 for each in axes):
        raise Refusal(
            f"{name} has shape {number_shape} for logits of shape {shape}; it must be a number for each row: give an "
            f"array that broadcasts against the logits, of size 1 along axis {axis}, as (heads, 1, 1), or one number"
        )


def row(logits: Any, axis: Any, name: str = "logits", **numbers: Any) -> int | tuple[int, ...]:
    """Returns the axis, or axes, of a row as whole numbers; None stands for all, as in `jax.nn.softmax`.

    Raises unless logits are floating point, have the axis, and the numbers are one for each row, or for all.
    """
    floats(name, logits)
    ndim = jnp.ndim(logits)
    if not ndim:
        raise Refusal(f"{name} {'are' if name in PLURAL else 'is'} one number without an axis: give x[None]")
    axes = tuple(range(ndim)) if axis is None else tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not axes or not all(map(is_whole, axes)):
        raise WrongType(f"axis is {shown(axis)}; it must be a whole number, a tuple of them, or None for all axes")
    axes = tuple(map(operator.index, axes))
    if not all(-ndim <= each < ndim for each in axes) or len({each % ndim for each in axes}) < len(axes):
        raise Refusal(f"axis is {axis}; of an array of rank {ndim} it must be from {-ndim} to {ndim - 1}, each once")
    axis = axes[0] if len(axes) == 1 else axes
    for number_name, number in numbers.items():
        if number is not None:
            per_row(number_name, number, jnp.shape(logits), axis)
    return axis


def one_axis(axis: int | tuple[int, ...]) -> int:
    """Returns the axis of a row that has one. Raises ValueError for several."""
    if isinstance(axis, tuple):
        raise Refusal(f"axis is {axis}; it must be one axis here: join them with reshape first")
    return axis


def against(number: ArrayLike, logits: Float[Array, "*shape"]) -> Float[Array, "..."]:
    """Returns a number in the type and rank of the logits, ready to broadcast against them."""
    array = jnp.asarray(number, logits.dtype)
    return array.reshape((1,) * (logits.ndim - array.ndim) + array.shape)
