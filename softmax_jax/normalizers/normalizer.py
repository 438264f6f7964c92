"""The one idea of the package: a normalizer is a map over a scale."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.masking import Axis, Mask, centre, visible_logits
from softmax_jax.normalizers.naming import name_rows
from softmax_jax.normalizers.scales import Scale


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Normalizer:
    r"""Turns logits into weights: `map(β · logits)`, with β given by the scale.

    `map` is a map of this package or any function with the signature of `jax.nn.softmax`; numbers of its own
    are bound with `jax.tree_util.Partial(map, name=number)`. `scale` is a scale, any pytree that is called
    like one, or None for β = 1. The normalizer is a pytree whose leaves are those numbers.

    >>> from softmax_jax import LogLength, softmax
    >>> n = Normalizer(softmax, LogLength(s=1.0))
    >>> n(jnp.array([1.0, 1.0, 9.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    map: Map
    scale: Scale | None = None

    def __post_init__(self) -> None:
        # A Partial is a pytree with the function as structure and the bound numbers as leaves.
        if callable(self.map) and not isinstance(self.map, jax.tree_util.Partial):
            object.__setattr__(self, "map", jax.tree_util.Partial(self.map))

    def __call__(self, logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; type and shape of the logits."""
        name_rows(self, logits, axis, where)
        if self.scale is None:
            return self.map(logits, axis, where)
        z = visible_logits(logits, where)
        beta = self.scale(z, axis, where)
        own, finite = z, jnp.isfinite(z)
        if getattr(getattr(self.map, "func", None), "shift_invariant", False):
            z = centre(z, axis, where)
        largest = jnp.finfo(z.dtype).max
        # The clips keep 0 · inf out of the product. Logits that are not finite pass by it: no β changes what they say.
        scaled = jnp.clip(jnp.clip(beta, -largest, largest) * z, -largest, largest)
        return self.map(jnp.where(finite, scaled, own), axis, where).astype(logits.dtype)
