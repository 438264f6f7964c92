"""The one idea of the package: a normalizer is a map over a scale."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks, masking
from softmax_jax.normalizers.maps import DISPERSES, Map, soft_cap, softmax
from softmax_jax.normalizers.masking import AnyAxis, AnyMask, Axis, Mask
from softmax_jax.normalizers.naming import name_rows
from softmax_jax.normalizers.numbers import ByNumbers, Numbers, number
from softmax_jax.normalizers.row import Row
from softmax_jax.normalizers.scales import Scale, ScaleLike
from softmax_jax.normalizers.surroundings import as_one, spec_of
from softmax_jax.refusal import WrongType

MapLike = Map | Callable[..., Float[Array, "..."]]
"""A map, or any function with the signature of `jax.nn.softmax`."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Bound(ByNumbers):
    """A function with numbers bound to it, which are its leaves; the function is structure.

    As `jax.tree_util.Partial`, whose tuple and dictionary Orbax cannot store where one of them is empty.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.func(*self.args, *args, **{**self.keywords, **keywords})

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        numbers = [(jax.tree_util.SequenceKey(place), number) for place, number in enumerate(self.args)]
        numbers += [(jax.tree_util.GetAttrKey(name), number) for name, number in sorted(self.keywords.items())]
        return numbers, (self.func, len(self.args), *sorted(self.keywords))

    @classmethod
    def tree_unflatten(cls, structure: tuple[Any, ...], numbers: Iterable[Any]) -> "Bound":
        func, places, *names = structure
        given = tuple(numbers)
        return cls(func, given[:places], dict(zip(names, given[places:])))


class Normalizer(Numbers):
    r"""Turns logits into weights: `map(β · logits)`, with β given by the scale.

    `map` is a map of this package or any function with the signature of `jax.nn.softmax`; numbers of such a function
    are bound with `jax.tree_util.Partial(map, name=number)`. `scale` is a scale, any pytree that is called
    like one, or None for β = 1. The normalizer is a pytree whose leaves are those numbers.

    >>> from softmax_jax import LogLength, softmax
    >>> n = Normalizer(softmax, LogLength(s=1.0))
    >>> n(jnp.array([1.0, 1.0, 9.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    map: MapLike
    scale: ScaleLike | None = None

    def __post_init__(self) -> None:
        self._check_parts()
        for part in ("map", "scale"):
            one: Any = getattr(self, part)
            if isinstance(one, jax.tree_util.Partial) and isinstance(one.func, Map):
                object.__setattr__(self, part, dataclasses.replace(one.func, **one.keywords))
            elif isinstance(one, jax.tree_util.Partial):
                object.__setattr__(self, part, Bound(one.func, one.args, one.keywords))
        if not isinstance(self.map, Map | Bound):
            object.__setattr__(self, "map", Bound(self.map))

    @property
    def shift_invariant(self) -> bool:
        """True if adding a constant to a row leaves its weights as they are; False for a plain function."""
        return isinstance(self.map, Map) and self.map.shift_invariant

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None
    ) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; type and shape of the logits.

        Raises TypeError for a map or scale that is none, ValueError for a number that does not fit the rows.
        """
        axis, where = self._checked(logits, axis, where)
        low_is_ignored = self.scale is None and isinstance(self.map, Map) and self.map.ignores_low
        return self._weights(logits, axis, where if low_is_ignored else masking.unless_low(logits, axis, where))

    def weigh(self, logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
        """Weighs logits as a call does, but takes only `where` and -inf for hidden, no low number."""
        return self._weights(logits, *self._checked(logits, axis, where))

    def _weights(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "*shape"]:
        name_rows(self, logits, axis, where)
        if self.scale is None:
            return _map_weights(self.map, logits, axis, where)

        def scaled(self: "Normalizer", logits: Array, where: Mask) -> Array:
            z, scale = masking.visible_logits(logits, where), cast(ScaleLike, self.scale)
            beta = scale.of_row(Row.of(z, axis, where)) if isinstance(scale, Scale) else scale(z, axis, where)
            centred = masking.centre(z, axis, where) if self.shift_invariant else z
            # Logits that are not finite pass by the product: no β changes what they say.
            z = jnp.where(jnp.isfinite(z), product(beta, centred), z)
            return _map_weights(self.map, z, axis, where).astype(jnp.result_type(logits))

        return as_one(scaled, self, logits, where, out=spec_of(logits))

    def _check_parts(self) -> None:
        """Raises TypeError unless map and scale can be called."""
        if isinstance(self.map, type) or not callable(self.map):
            raise WrongType(
                f"map is {checks.shown(self.map)}; it must be a map or a function with the signature of "
                "jax.nn.softmax: give one, such as softmax_jax.softmax, of a class an object, as Softmax(), or build "
                "by name with softmax_jax.normalizer"
            )
        if isinstance(self.scale, type) or not (self.scale is None or callable(self.scale)):
            raise WrongType(
                f"scale is {checks.shown(self.scale)}; it must be a scale, called with logits, axis and where: "
                "give one, such as softmax_jax.LogLength(), or None"
            )

    def _checked(self, logits: Float[Array, "*shape"], axis: AnyAxis, where: AnyMask) -> tuple[Axis, Mask]:
        """Axis and mask as `axis_and_mask` gives them. Raises unless the scale fits the rows."""
        axis, where = masking.axis_and_mask(logits, axis, where)
        self._check_beta(logits, axis)
        return axis, where

    def _check_beta(self, logits: Float[Array, "*shape"], axis: Axis) -> None:
        """Raises unless β is a number for each row. Plain numbers in our own scales make it one."""
        scale = self.scale
        if scale is None or (isinstance(scale, Scale) and not checks.has_axes(scale)):
            return
        name = type(scale).__name__
        try:
            beta: Any = jax.eval_shape(lambda z: jnp.asarray(scale(masking.visible_logits(z), axis, None)), logits)
        except (TypeError, ValueError):
            for path, number in jax.tree_util.tree_leaves_with_path(scale):
                if checks.is_array(number):
                    checks.per_row(f"{name}{jax.tree_util.keystr(path)}", number, jnp.shape(logits), axis)
            raise
        checks.per_row(f"β of the scale {name}", beta, jnp.shape(logits), axis)


def _map_weights(map: MapLike, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "*shape"]:
    return (map.weigh if isinstance(map, Map) else map)(logits, axis, where)


def product(beta: ArrayLike, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """β·z with one β for each row, kept finite: of finite logits, so that 0 · inf cannot arise."""
    largest = float(jnp.finfo(logits.dtype).max)
    beta = jnp.clip(jnp.asarray(beta, logits.dtype), -largest, largest)
    return masking.at_most(masking.at_least(_times(beta, logits), -largest), largest)


@jax.custom_jvp
def _times(beta: Float[Array, "..."], logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return beta * logits


@_times.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (beta, logits), (beta_slope, logits_slope) = primals, tangents
    # Within 1e-8 of the largest float, so that no product with a slope is infinite, which times 0 would be NaN.
    bound = 1e-8 * float(jnp.finfo(logits.dtype).max)
    bounded = masking.at_most(masking.at_least(logits, -bound), bound)
    return _times(beta, logits), beta * logits_slope + masking.times_row(bounded, beta_slope)


class SoftCapped(Map):
    r"""Softmax, or another normalizer, of logits that are bounded smoothly, by `soft_cap`.

    $$w = \operatorname{softmax}(c \tanh(z / c))$$

    c is the `cap`, from 1e-6 to 1e30. The capped logits are all that scale and map see.

    When to use it. In a model that was trained with it: no logit leads by more than 2c. Every method takes `cap`, so
    `ssmax(cap=50)` is SSMax of capped logits.

    Source: Gemma Team, "Gemma 2", arXiv 2408.00118.

    >>> SoftCapped()(jnp.array([1e3, 1e3, -jnp.inf]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    formula = "softmax(c·tanh(z/c))"
    largest_weight = DISPERSES
    source = "Gemma 2, arXiv 2408.00118"

    cap: ArrayLike = number(
        default=50.0, rule="above 0, from 1e-6 to 1e30, such as 50.0", holds=lambda cap: 1e-6 <= cap <= 1e30
    )
    of: Normalizer = Normalizer(softmax)

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        return self.of.weigh(soft_cap(row.logits, row.number(self.cap)), row.axis)
