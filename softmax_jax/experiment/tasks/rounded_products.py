"""Matrix products at a stated precision: the device's own on TPUs and GPUs, emulated on CPUs.

A device of low precision rounds both operands of a product to fewer bits and sums in float32. It rounds the operands
of the two products of the backward pass in the same way; one of them is the cotangent.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from softmax_jax.normalizers.checks import one_of
from softmax_jax.refusal import Refusal

FLOAT32, FLOAT8 = "float32", "float8_e4m3"
BITS = {"bfloat16": (8, 7), "tensorfloat32": (8, 10)}
"""Bits of exponent and mantissa. Float8, of four and three, has rules of its own for small and for large numbers."""
PRECISIONS = FLOAT32, *BITS, FLOAT8
SPACING = {name: 2.0 ** -(bits + 1) for name, (_, bits) in BITS.items()} | {FLOAT8: 2.0**-4}
"""The distance between neighbours of a precision just below 1."""
HARDWARE: dict[str, dict[str, Any]] = {
    "tpu": {"bfloat16": jax.lax.Precision.DEFAULT},
    "gpu": {
        "bfloat16": jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
        "tensorfloat32": jax.lax.DotAlgorithmPreset.TF32_TF32_F32,
    },
}
"""The option of `einsum` where devices multiply at a precision themselves. TPUs leave matrix-vector products exact."""
PLACES = "inputs", "dense", "all"
"""Nested: products that read the inputs; those and all others with a kernel; those and the products over items."""
LAYER = "...i,io->...o"
"""The product of a dense layer."""


@dataclasses.dataclass(frozen=True)
class Rounding:
    """A precision for a test other than that of training, as options of a command line."""

    matmul: str | None = None
    """What products round to, if not as in training: float32, tensorfloat32, bfloat16, float8_e4m3."""
    rounded: str | None = None
    """Which products, if not those of training: inputs, dense or all."""

    @property
    def given(self) -> dict[str, str]:
        """Returns the settings of the task that it changes."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


NOT_GIVEN = Rounding()


def check(matmul: str, rounded: str) -> None:
    """Raises Refusal unless these are a precision and a place."""
    one_of("--matmul", matmul, PRECISIONS)
    one_of("--rounded", rounded, PLACES)


def precisions(matmul: str, rounded: str) -> tuple[str, ...]:
    """Returns the precision of the products at each of `PLACES` if those up to `rounded` have precision `matmul`.

    Raises Refusal for a precision that the device lacks.

    >>> precisions("bfloat16", "dense")
    ('bfloat16', 'bfloat16', 'float32')
    """
    device = jax.default_backend()
    known = (FLOAT32, *HARDWARE[device]) if device in HARDWARE else PRECISIONS
    if matmul not in known:
        raise Refusal(f"--matmul is {matmul!r}, which this {device} lacks: it must be one of {', '.join(known)}")
    return tuple(matmul if at <= PLACES.index(rounded) else FLOAT32 for at in range(len(PLACES)))


def product(
    precision: str, indices: str, a: Float[Array | np.ndarray, "..."], b: Float[Array | np.ndarray, "..."]
) -> Float[Array, "..."]:
    """Returns `jnp.einsum(indices, a, b)` at a precision, which the two products of its derivative have too.

    >>> a, b = jnp.array([1.001]), jnp.array([2.0])
    >>> [float(product(precision, "i,i->", a, b)) for precision in ("tensorfloat32", "bfloat16")]
    [2.001953125, 2.0]
    """
    backend = jax.default_backend()
    if backend in HARDWARE:
        options = {FLOAT32: jax.lax.Precision.HIGHEST} | HARDWARE[backend]
        return jnp.einsum(indices, a, b, precision=options[precision])
    return _emulated(precision, indices, jnp.asarray(a), jnp.asarray(b))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _emulated(precision: str, indices: str, a: Array, b: Array) -> Array:
    return _forward(precision, indices, a, b)[0]


def _forward(precision: str, indices: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    operands = rounded_to(precision, a), rounded_to(precision, b)
    return jnp.einsum(indices, *operands), operands


def _backward(precision: str, indices: str, operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    # Not the derivative of the rounding, which would round what comes out of the products.
    cotangent = rounded_to(precision, cotangent)
    return jax.vjp(functools.partial(jnp.einsum, indices), *operands)[1](cotangent)


_emulated.defvjp(_forward, _backward)


def rounded_to(precision: str, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Rounds to the nearest numbers of a precision, ties to even; float8 clips at its largest, float32 changes nothing.

    >>> rounded_to("bfloat16", jnp.array([1.001, 1.005])).tolist()
    [1.0, 1.0078125]
    """
    if precision == FLOAT32:
        return x
    if precision == FLOAT8:
        largest = float(jnp.finfo(jnp.float8_e4m3fn).max)
        return jnp.clip(x, -largest, largest).astype(jnp.float8_e4m3fn).astype(x.dtype)
    return jax.lax.reduce_precision(x, *BITS[precision])


def layer(precision: str, size: int, to: int, rngs: nnx.Rngs) -> nnx.Linear:
    """Returns a dense layer whose product has a precision."""

    def dot_general(inputs: Array, kernel: Array, *_: Any, **__: Any) -> Array:
        return product(precision, LAYER, inputs, kernel)

    return nnx.Linear(size, to, dot_general=dot_general, rngs=rngs)
