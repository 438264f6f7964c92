"""What the transformations share: which sites are meant, and how the weights of one are replaced or looked at."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import Axis
from softmax_jax.transforms import interpreter
from softmax_jax.transforms.finding import Softmax
from softmax_jax.transforms.graph import Graph, Node, Value
from softmax_jax.transforms.layout import Step
from softmax_jax.transforms.masks import Hidden, visible
from softmax_jax.transforms.paths import SAME
from softmax_jax.transforms.rewriting import Records, Replacement, Values, execute
from softmax_jax.transforms.sites import UNREADABLE, Place, Site, places

Where = Callable[[Site], bool] | None
"""Says of a site whether it is meant; None means every attention site."""


class Rows(NamedTuple):
    """The logits of a site, while its function runs."""

    logits: Float[Array, "*shape"]
    axis: Axis
    where: Bool[Array, "*shape"] | None
    """True at the logits that the model does not hide."""
    original: Callable[[], Float[Array, "*shape"]]
    """Computes the weights that the model has."""
    hidden: Hidden
    """How the model hides logits."""


Weigh = Callable[[Rows], tuple[Float[Array, "*shape"] | None, Any]]
"""From the rows of a site to weights in the place of the model's, None for these, and what is to be recorded."""


def apply(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    choose: Callable[[list[Place]], Mapping[Place, Weigh]],
) -> tuple[Any, list[tuple[Site, Any]]]:
    """What a function returns if the chosen sites weigh their rows so, and what each of these recorded."""
    program = interpreter.trace(fun, args, kwargs)
    graph = Graph(program)
    chosen = choose(places(graph, fun))
    replacements: dict[Node, Replacement] = {}
    needed = []
    for place, weigh in chosen.items():
        if softmax := place.softmax:
            replacements |= _replacements(place, softmax, weigh)
            needed += [*softmax.needed(), *(one.predicate for one in place.hidden.predicates)]
    results, records = execute(graph, program.arrays, replacements, needed)
    return program.restore(results), [(place.site, records.get(str(place.site.index))) for place in chosen]


def _replacements(place: Place, softmax: Softmax, weigh: Weigh) -> dict[Node, Replacement]:
    """What stands for the equations of a softmax."""
    equation, axis, factor = softmax.node.equation, place.site.axis, softmax.exponents.factor
    last = softmax.axes[-1]

    def weighed(values: Values, model: Callable[[], Array] | None) -> tuple[Array | None, Records]:
        """Returns new weights of the exponentials' shape and what was recorded; `model` computes the model's."""
        predicates = [(_lookup(one.predicate, values), one.visible_if, one.steps) for one in place.hidden.predicates]
        with interpreter.within(equation):
            logits = values[softmax.logits]
            where = visible(logits, predicates, place.hidden.by_value)
            logits = logits if factor == 1 else logits * jnp.asarray(factor, logits.dtype)
            one_more = _extra_logit(softmax, logits, values)
            if one_more is not None:
                logits = jnp.concatenate([logits, one_more], last)
                where = None if where is None else jnp.concatenate([where, jnp.ones_like(one_more, bool)], last)
            model = model or (lambda: _unformed(softmax, one_more, values))
            weights, record = weigh(Rows(logits, axis, where, model, place.hidden))
            if weights is not None and one_more is not None:
                weights = jax.lax.slice_in_dim(weights, 0, -1, axis=last)
        return weights, {str(place.site.index): record}

    def to_weights(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        original = interpreter.execute(equation, operands)
        weights, records = weighed(values, (lambda: original[0]) if softmax.plain else None)
        if weights is None:
            return original, records
        return [_laid_out(weights, softmax.steps, values).astype(original[0].dtype)], records

    def to_logarithms(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        original = interpreter.execute(equation, operands)
        weights, records = weighed(values, (lambda: jnp.exp(original[0])) if softmax.plain else None)
        return original if weights is None else [jnp.log(weights).astype(original[0].dtype)], records

    if softmax.product is None:
        return {softmax.node: to_logarithms if softmax.form == "log" else to_weights}
    product, changed = softmax.product.equation, []

    def to_product(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        weights, records = weighed(values, None)
        if weights is not None:
            changed.append(True)
            weights = _laid_out(weights, softmax.steps, values)
            operands[softmax.weights_at] = weights.astype(operands[softmax.weights_at].dtype)
        return interpreter.execute(product, operands), records

    def not_divided(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        return [operands[softmax.numerator_at]] if changed else interpreter.execute(equation, operands), {}

    return {softmax.product: to_product, softmax.node: not_divided}


def _lookup(value: Value, values: Values) -> Any:
    return values[value] if value.literal is None else value.literal


def _laid_out(weights: Array, steps: Iterable[Step], values: Values) -> Array:
    """Lays out weights as the model lays out the exponentials."""
    for step in steps:
        if step.node.name not in SAME:
            inputs = step.node.inputs
            moved = weights.astype(inputs[step.position].dtype)
            operands = [moved if place == step.position else _lookup(one, values) for place, one in enumerate(inputs)]
            weights = interpreter.execute(step.node.equation, operands)[step.result]
    return weights


def _extra_logit(softmax: Softmax, logits: Float[Array, "*shape"], values: Values) -> Array | None:
    """The extra logit of each row, laid out as one more entry; None where there is none."""
    if (extra := softmax.extra) is None:
        return None
    logit = _lookup(extra.logit, values) if isinstance(extra.logit, Value) else extra.logit
    logit = jnp.asarray(logit, logits.dtype) * jnp.asarray(extra.factor, logits.dtype)
    if extra.steps:
        first = extra.steps[0]
        logit = _laid_out(jnp.broadcast_to(logit, first.node.inputs[first.position].shape), extra.steps, values)
    row = [1 if axis in softmax.axes else size for axis, size in enumerate(logits.shape)]
    return jnp.broadcast_to(logit.astype(logits.dtype), extra.shape).reshape(row)


def _unformed(softmax: Softmax, one_more: Array | None, values: Values) -> Float[Array, "*shape"]:
    """The weights of the model where it never forms them so: exponentials over their sum."""
    exponentials = values[softmax.summed]
    if one_more is not None:
        _, factor, shift = softmax.exponents
        if shift is not None:
            first = (
                values[shift] if shift.shape == () else jax.lax.slice_in_dim(values[shift], 0, 1, axis=softmax.axes[0])
            )
            one_more = one_more - jnp.asarray(first * factor, one_more.dtype)
        exponentials = jnp.concatenate([exponentials, jnp.exp(one_more).astype(exponentials.dtype)], softmax.axes[0])
    return exponentials / jnp.sum(exponentials, softmax.axes, keepdims=True)


def meant(found: Iterable[Place], where: Where, asked: bool = False) -> list[Place]:
    """The places of the sites that are meant: attention, unless `where` says or the user asked for these by index.

    Raises ValueError for a site among them that cannot be read.
    """
    chosen = []
    for place in found:
        site = place.site
        if where(site) if where else asked or site.use in ("attention", *UNREADABLE):
            if site.use in UNREADABLE:
                raise ValueError(_refusal(site))
            chosen.append(place)
    return chosen


def _refusal(site: Site) -> str:
    return (
        f"site {site.index} at {site.line} is {site.what}, {UNREADABLE[site.use]}: choose the model's plain attention, "
        "or leave the site as it is with where=lambda site: site.use == 'attention'"
    )


def some(chosen: list[Place], found: list[Place]) -> list[Place]:
    """The chosen places. Raises ValueError if there is none."""
    if not chosen:
        listed = ", ".join(f"{place.site.index}: {place.site.scope} ({place.site.use})" for place in found)
        raise ValueError(
            f"no site is chosen among {listed}: choose some by where=, or by their index; in a function that was "
            "swapped already, probe and swap the original"
        )
    return chosen


def matching(found: list[Place], pattern: str | int) -> list[Place]:
    """The places whose site a pattern matches. Raises ValueError, with the nearest scopes first, if there is none."""
    matched = [place for place in found if place.site.matches(pattern)]
    if not matched:
        scopes = list(dict.fromkeys(place.site.scope for place in found))
        if isinstance(pattern, int):
            raise ValueError(f"there is no site {pattern}: the sites are 0 to {len(found) - 1}")
        near = sorted(scopes, key=lambda scope: -difflib.SequenceMatcher(None, pattern, scope).ratio())
        raise ValueError(f"no site matches {pattern!r}; the scopes are {', '.join(map(repr, near))}")
    return matched
