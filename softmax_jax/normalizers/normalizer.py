"""The one idea of the package: a normalizer is a map over a scale."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.masking import Axis, Mask, centre, visible_logits
from softmax_jax.normalizers.naming import name_rows
from softmax_jax.normalizers.scales import OfRow, Scale


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
        self._check(logits, axis)
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

    def _check(self, logits: Any, axis: Axis) -> None:
        """Raises unless map and scale are such, and β is a number for each row, before anything is computed."""
        if not callable(self.map):
            raise TypeError(
                f"map is {checks.shown(self.map)}; it must be a function with the signature of jax.nn.softmax: "
                "give one, such as softmax_jax.softmax, or build by name with softmax_jax.normalizer"
            )
        scale = self.scale
        if scale is None:
            return
        if isinstance(scale, type) or not callable(scale):
            raise TypeError(
                f"scale is {checks.shown(scale)}; it must be a scale, called with logits, axis and where: "
                "give one, such as softmax_jax.LogLength(), or None"
            )
        checks.row(logits, axis)
        # Plain numbers in our own scales make one β for each row.
        if not isinstance(scale, OfRow) or checks.has_axes(scale):
            like = jax.eval_shape(visible_logits, logits)
            name = type(scale).__name__
            try:
                beta = jax.eval_shape(lambda z: jnp.asarray(scale(z, axis, None)), like)
            except (TypeError, ValueError):
                for path, number in jax.tree_util.tree_leaves_with_path(scale):
                    if checks.is_array(number):
                        checks.per_row(f"{name}{jax.tree_util.keystr(path)}", number, like.shape, axis)
                raise
            checks.per_row(f"β of the scale {name}", beta, like.shape, axis)
