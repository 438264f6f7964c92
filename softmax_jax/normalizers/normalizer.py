"""Puts a map over a scale: the one idea of the package."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.maps import DISPERSES, Map, soft_cap, softmax
from softmax_jax.normalizers.naming import name_of
from softmax_jax.normalizers.parameters import ByNumbers, Numbers, number
from softmax_jax.normalizers.row import AnyAxis, AnyMask, Axis, Row, weigh
from softmax_jax.normalizers.scales import Scale, ScaleLike
from softmax_jax.refusal import WrongType

MapLike = Map | Callable[..., Float[Array, "..."]]
"""A map, or any function with the signature of `jax.nn.softmax`."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Bound(ByNumbers):
    """A function with numbers bound to it. The numbers are leaves, the function is structure.

    As `jax.tree_util.Partial`, whose tuple and dictionary Orbax cannot store where one of them is empty.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.func(*self.args, *args, **{**self.keywords, **keywords})

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves = [(jax.tree_util.SequenceKey(place), leaf) for place, leaf in enumerate(self.args)]
        leaves += [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in sorted(self.keywords.items())]
        return leaves, (self.func, len(self.args), *sorted(self.keywords))

    @classmethod
    def tree_unflatten(cls, structure: tuple[Any, ...], leaves: Iterable[Any]) -> "Bound":
        func, places, *names = structure
        leaves = tuple(leaves)
        return cls(func, leaves[:places], dict(zip(names, leaves[places:])))


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
            value: Any = getattr(self, part)
            if isinstance(value, jax.tree_util.Partial) and isinstance(value.func, Map):
                object.__setattr__(self, part, dataclasses.replace(value.func, **value.keywords))
            elif isinstance(value, jax.tree_util.Partial):
                object.__setattr__(self, part, Bound(value.func, value.args, value.keywords))
        if not isinstance(self.map, Map | Bound):
            object.__setattr__(self, "map", Bound(self.map))
        is_leaf = jax.tree_util.all_leaves([self.scale]) and not hasattr(self.scale, "of_row")
        if self.scale is not None and is_leaf:  # a plain function, which could be no argument of a compiled one
            object.__setattr__(self, "scale", Bound(self.scale))

    @property
    def shift_invariant(self) -> bool:
        """True if adding a constant to a row leaves its weights as they are; False for a plain function."""
        return isinstance(self.map, Map) and self.map.shift_invariant

    @property
    def ignores_low(self) -> bool:
        """True if a logit far below the largest of its row changes nothing; False under a scale, which counts it."""
        return self.scale is None and isinstance(self.map, Map) and self.map.ignores_low

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None
    ) -> Float[Array, "*shape"]:
        """Returns weights of the logits along `axis`, 0 where `where` is False, in the type and shape of the logits.

        Raises TypeError for a map or scale that is none, ValueError for a number that does not fit the rows.
        """
        return weigh(self, logits, axis, where, low_hides=True)

    def of_row(self, row: Row) -> Float[Array, "*shape"]:
        """Returns weights of rows: those that the map gives β times their logits."""
        if self.scale is not None:
            row = row.scaled(beta_of(self.scale, row), centred=self.shift_invariant)
        if isinstance(self.map, Map):
            return self.map.of_row(row)
        if self.scale is None:
            return self.map(row.given, row.axis, row.where)
        return self.map(row.shown(), row.axis, row.where).astype(jnp.result_type(row.given))

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

    def check(self, logits: Float[Array, "*shape"], axis: Axis) -> None:
        """Raises unless β, and each number of the map, is one for each row."""
        if isinstance(self.map, Map):
            self.map.check(logits, axis)
        scale = self.scale
        if scale is None or (isinstance(scale, Scale) and not checks.has_axes(scale)):
            return  # because a scale of this package gives one β per row unless its numbers have axes
        name = name_of(scale)
        try:
            beta: Any = jax.eval_shape(lambda z: jnp.asarray(beta_of(scale, Row.of(z, axis, None, False))), logits)
        except (TypeError, ValueError):
            for path, leaf in jax.tree_util.tree_leaves_with_path(scale):
                if checks.is_array(leaf):
                    checks.per_row(f"{name}{jax.tree_util.keystr(path)}", leaf, jnp.shape(logits), axis)
            raise
        checks.per_row(f"β of the scale {name}", beta, jnp.shape(logits), axis)


def beta_of(scale: ScaleLike, row: Row) -> ArrayLike:
    """Returns β of each row by a scale, or by a plain function of logits, axis and mask."""
    return scale.of_row(row) if isinstance(scale, Scale) else scale(row.shown(), row.axis, row.where)


class SoftCapped(Map):
    r"""Softmax, or another normalizer, of logits that are bounded smoothly, by `soft_cap`.

    $$w = \operatorname{softmax}(c \tanh(z / c))$$

    c is the `cap`, from 1e-6 to 1e30. The capped logits are all that scale and map see.

    When to use it. In a model that was trained with it: no logit leads by more than 2c. Every method takes `cap`, as in
    `ssmax(cap=50)`.

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
        capped = soft_cap(row.logits, row.number(self.cap))
        return self.of.of_row(dataclasses.replace(row, logits=capped, given=capped))
