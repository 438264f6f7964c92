"""What the transformations share: which sites are meant, and how the weights of one are replaced or looked at."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import Axis
from softmax_jax.transforms import interpreter
from softmax_jax.transforms.finding import Softmax
from softmax_jax.transforms.graph import Graph, Node
from softmax_jax.transforms.masks import Hidden, visible
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
            needed += [softmax.logits, *(predicate for predicate, _ in place.hidden.predicates)]
    results, records = execute(graph, program.arrays, replacements, needed)
    return program.restore(results), [(place.site, records.get(str(place.site.index))) for place in chosen]


def _replacements(place: Place, softmax: Softmax, weigh: Weigh) -> dict[Node, Replacement]:
    """What stands for the equations of a softmax."""
    equation = softmax.node.equation

    def weighed(values: Values, original: Callable[[], Array]) -> tuple[Array | None, Records]:
        logits = values[softmax.logits]
        predicates = [(values[predicate], visible_if) for predicate, visible_if in place.hidden.predicates]
        with interpreter.within(equation):
            where = visible(logits, predicates, place.hidden.by_value)
            if softmax.factor != 1:
                logits = logits * jnp.asarray(softmax.factor, logits.dtype)
            weights, record = weigh(Rows(logits, place.site.axis, where, original, place.hidden))
        return weights, {str(place.site.index): record}

    def to_weights(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        original = interpreter.execute(equation, operands)
        weights, records = weighed(values, lambda: original[0])
        return original if weights is None else [weights.astype(original[0].dtype)], records

    def to_logarithms(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        original = interpreter.execute(equation, operands)
        weights, records = weighed(values, lambda: jnp.exp(original[0]))
        return original if weights is None else [jnp.log(weights).astype(original[0].dtype)], records

    if softmax.product is None:
        return {softmax.node: to_logarithms if softmax.form == "log" else to_weights}
    product, changed = softmax.product.equation, []

    def to_product(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        weights, records = weighed(values, lambda: _softmax(operands[softmax.weights_at], place.site.axis))
        if weights is not None:
            changed.append(True)
            exponentials = operands[softmax.weights_at]
            operands[softmax.weights_at] = weights.astype(exponentials.dtype)
        return interpreter.execute(product, operands), records

    def not_divided(operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        return [operands[softmax.numerator_at]] if changed else interpreter.execute(equation, operands), {}

    return {softmax.product: to_product, softmax.node: not_divided}


def _softmax(exponentials: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*shape"]:
    """Weights that are never formed: exponentials over their sum."""
    return exponentials / jnp.sum(exponentials, axis, keepdims=True)


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
    why = "a kernel, whose inside cannot be read" if site.use == "kernel" else "of rows that never lie whole"
    return (
        f"site {site.index} at {site.line} is {site.what}, {why}: choose the model's plain attention, "
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
