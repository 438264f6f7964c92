"""`swap`: any JAX function with other normalizers in the place of its softmaxes."""

import dataclasses
import difflib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers import checks, maps
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.normalizers.row import HIDDEN, Axis, weigh
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.find import Mask, Step
from softmax_jax.transforms.program import (
    IDENTITIES,
    VIEWS,
    Records,
    Value,
    Values,
    execute,
    execute_equation,
    lookup,
    trace,
    tracing_context,
)
from softmax_jax.transforms.sites import Site, TracedSite, check_callable, find_sites
from softmax_jax.transforms.unread import UNREADABLE

Where = Callable[[Site], bool] | None
"""Says of a site whether it is chosen; None chooses every attention site."""
Normalizers = NormalizerLike | Mapping[Any, NormalizerLike]
"""One for all chosen sites, or by index, or by scope, in which `*` stands for anything."""
Empty = Literal["model", "zeros"]
INSIDE = "swap inside, before the derivative is taken, as in jax.grad(sj.swap(f, ...))"
"""The remedy for a derivative in the function."""


class SiteLogits(NamedTuple):
    """The logits of a site, while its function runs."""

    logits: Float[Array, "*shape"]
    axis: Axis
    where: Bool[Array, "*shape"] | None
    """True at the logits that the model does not hide."""
    model_weights: Callable[[], Float[Array, "*shape"]]
    """Computes the weights that the model has."""


Recorder = Callable[[SiteLogits, Float[Array, "*shape"]], Any]
"""Takes the logits of a site and the weights that they get; returns a record."""


def swap(
    fun: Callable[..., Any], normalizer: Normalizers, *, where: Where = None, empty: Empty = "model"
) -> Callable[..., Any]:
    r"""Replaces the softmax of a function's attention by a normalizer, as if the function were edited by hand.

    $$w = \operatorname{softmax}(z) \quad\to\quad w = \operatorname{normalizer}(z)$$

    The mask is that of the model: entries that it hides with a predicate or a large negative number are hidden before
    any scale multiplies, get weight 0, and do not count in n.

    The function is traced at every call, as under `jax.grad`: wrap the result in `jax.jit`. It composes with `jit`,
    `grad`, `vmap`, `scan` and `checkpoint`. A normalizer that is an argument of the compiled function may change
    without a new compilation. Objects of `flax.nnx` among the arguments keep what `fun` writes to them, such as a
    cache.

    Swap first and differentiate after: a function that takes the derivative of a chosen softmax itself is refused,
    since only the forward pass would change. A custom rule for derivatives around a swapped softmax
    (`jax.custom_jvp`, `jax.custom_vjp`) gives way to the derivative of the new normalizer; `sites` names a rule that
    JAX does not define.

    Arguments:
        fun: Any JAX function.
        normalizer: A `Normalizer`, its name, a map, or a function with the signature of `jax.nn.softmax`. Or several by
            pattern, `{"*/block_3": "ssmax(s=0.4)", 7: "entmax15"}`: a pattern is an index in `sites(fun)(...)`, or a
            scope in which `*` stands for anything. The first that matches a site counts; a site that none matches
            stays. Numbers per head have the shape (heads, 1, 1) for logits of shape (batch, heads, queries, keys).
        where: Says of a `Site` whether it is chosen. Without it the sites are chosen whose use is attention, and those
            that are named by index.
        empty: What a row with nothing visible gets: "model" leaves it as the model has it, often uniform; "zeros" gives
            it no weight. A row of only -inf gets 0. Under "model", a swap to softmax leaves a site as it is.

    Returns:
        A function of the same arguments and results.

    Raises:
        TypeError: `fun` is no function, or `normalizer` none.
        ValueError: `fun` has no softmax; a pattern matches nothing; a chosen site cannot be read, or `fun` takes its
            derivative itself; numbers do not fit a site; `fun` writes to an object of NNX that is none of its
            arguments.

    Example:
        >>> import jax
        >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
        >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0]])
        >>> swap(attend, "hardmax")(x, x, x)
        Array([[1., 0.],
               [0., 2.]], dtype=float32)
    """
    transformed = transform(fun, by_pattern(normalizer), where, empty)

    @functools.wraps(fun, updated=())
    def swapped(*args: Any, **kwargs: Any) -> Any:
        return transformed(*args, **kwargs)[0]

    return swapped


def by_pattern(normalizers: Normalizers) -> dict[Any, Normalizer]:
    """Returns normalizers by the pattern of their sites."""
    patterns = normalizers if isinstance(normalizers, Mapping) else {"*": normalizers}
    return {pattern: as_normalizer(normalizer) for pattern, normalizer in patterns.items()}


def transform(
    fun: Callable[..., Any],
    normalizers: Mapping[Any, Normalizer | None],
    where: Where = None,
    empty: Empty = "model",
    recorder: Recorder | None = None,
) -> Callable[..., tuple[Any, list[tuple[Site, Any]]]]:
    """Returns a function that returns what `fun` returns under normalizers by pattern, and a record of each site.

    None as a normalizer leaves the weights of the model, which are recorded. Raises as `swap` does.
    """
    check_callable(fun)
    checks.one_of("empty", empty, get_args(Empty))

    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, list[tuple[Site, Any]]]:
        program = trace(fun, args, kwargs)
        chosen = choose(find_sites(program, fun), normalizers, where)
        candidates = [Replacement(traced, normalizer, empty, recorder) for traced, normalizer in chosen.items()]
        replacements = {candidate.softmax.node: candidate for candidate in candidates if candidate.changes or recorder}
        refuse_derivatives(replacements.values())
        changed = {node for node, replacement in replacements.items() if replacement.changes}
        required = [value for replacement in replacements.values() for value in replacement.required_values()]
        results, records = execute(program, replacements, changed, required)
        return program.restore(results), [(traced.site, records.get(str(traced.site.index))) for traced in chosen]

    return transformed


def choose(
    traced_sites: list[TracedSite], normalizers: Mapping[Any, Normalizer | None], where: Where
) -> dict[TracedSite, Normalizer | None]:
    """Returns the chosen sites with the normalizer of the first pattern that matches each.

    Raises ValueError for a pattern that matches no site, for a chosen site that cannot be read, and if none is chosen.
    """
    chosen: dict[TracedSite, Normalizer | None] = {}
    for pattern, normalizer in normalizers.items():
        for traced in _matching(traced_sites, pattern):
            site, by_index = traced.site, isinstance(pattern, int)
            if not (where(site) if where else by_index or site.use in ("attention", *UNREADABLE)):
                continue
            if traced.softmax is None:
                why = UNREADABLE.get(site.use, UNREADABLE["unread"])
                remedy = INSIDE if site.use == "derivative" else "choose the model's plain attention"
                raise Refusal(
                    f"site {site.index} at {site.line} is {site.what}, {why}: {remedy}, or leave the "
                    "site as it is with where=lambda site: site.use == 'attention'"
                )
            chosen.setdefault(traced, normalizer)
    if not chosen:
        listed = ", ".join(f"{site.index}: {site.scope} ({site.use})" for site, *_ in traced_sites)
        raise Refusal(
            f"no site is chosen among {listed}: choose some by where=, or by their index; in a function that was "
            "swapped already, probe and swap the original"
        )
    return chosen


def refuse_derivatives(replacements: "Iterable[Replacement]") -> None:
    """Raises ValueError for weights that change while a derivative, taken in the function itself, would stay."""
    for replacement in replacements:
        if replacement.changes and replacement.traced.derived:
            site = replacement.traced.site
            raise Refusal(
                f"site {site.index} at {site.line} is a softmax whose derivative the function takes itself, and a swap "
                f"would leave: {INSIDE}"
            )


def _matching(traced_sites: list[TracedSite], pattern: str | int) -> list[TracedSite]:
    """Returns the sites that a pattern matches. Raises ValueError, with the nearest scopes first, for none."""
    matched = [traced for traced in traced_sites if traced.site.matches(pattern)]
    if not matched:
        if isinstance(pattern, int):
            raise Refusal(f"there is no site {pattern}: the sites are 0 to {len(traced_sites) - 1}")
        scopes = list(dict.fromkeys(traced.site.scope for traced in traced_sites))
        near = sorted(scopes, key=lambda scope: -difflib.SequenceMatcher(None, pattern, scope).ratio())
        raise Refusal(f"no site matches {pattern!r}; the scopes are {', '.join(map(repr, near))}")
    return matched


@dataclasses.dataclass
class Replacement:
    """Computes new weights in the place of a softmax, and records them; without a normalizer only records."""

    traced: TracedSite
    normalizer: Normalizer | None
    empty: Empty
    recorder: Recorder | None

    def __post_init__(self) -> None:
        assert self.traced.softmax
        self.softmax = self.traced.softmax

    @property
    def changes(self) -> bool:
        """True if weights are computed: softmax is what the model has, except for its empty rows."""
        if self.normalizer is None:
            return False
        is_softmax = type(self.normalizer.map) is maps.Softmax and self.normalizer.scale is None
        return not (is_softmax and self.empty == "model")

    def required_values(self) -> list[Value]:
        """Returns the values that it looks up."""
        return [*self.softmax.required_values(), *(mask.predicate for mask in self.traced.hidden.masks)]

    def __call__(self, operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        """Returns the results of the equation, from its operands and all values so far, and the record by index."""
        softmax, site, equation = self.softmax, self.traced.site, self.softmax.node.equation
        (original,) = results = execute_equation(equation, operands)
        with tracing_context(equation):
            rows = self.site_logits(original, values)
            if self.changes:
                try:
                    weights = self.weigh(rows)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"site {site.index}, {site.scope} at {site.line}: {error}") from None
            else:
                weights = rows.model_weights()
            records = {str(site.index): self.recorder(rows, weights)} if self.recorder else {}
        if self.changes:
            if softmax.extra:
                weights = jax.lax.slice_in_dim(weights, 0, -1, axis=softmax.axes[-1])
            new = jnp.log(weights) if softmax.form == "log" else _replay(weights, softmax.steps, values)
            results = [new.astype(original.dtype)]
        return results, records

    def site_logits(self, original: Array, values: Values) -> SiteLogits:
        """Returns the logits of the model with its mask, and with an extra logit as one more entry."""
        softmax, hidden = self.softmax, self.traced.hidden
        logits, factor = values[softmax.logits], softmax.exponents.factor
        logits = logits if factor == 1 else logits * jnp.asarray(factor, logits.dtype)
        if softmax.extra:
            logits = jnp.concatenate([logits, self.extra_logit(logits, values)], softmax.axes[-1])

        def model_weights() -> Array:
            if softmax.unmodified:
                return jnp.exp(original) if softmax.form == "log" else original
            return jax.nn.softmax(logits, softmax.axes, where=self.visible(softmax.masks, False, values))

        where = self.visible(hidden.masks, hidden.by_value, values)
        return SiteLogits(logits, self.traced.site.axis, where, model_weights)

    def visible(self, masks: Iterable[Mask], by_value: bool, values: Values) -> Bool[Array, "*shape"] | None:
        """Returns True at the visible logits, the extra one included; None if none is hidden."""
        logits, softmax = values[self.softmax.logits], self.softmax
        shown = []
        for mask in masks:
            predicate = lookup(mask.predicate, values).astype(bool)  # it may be of numbers, 0 where it is False
            entries = _replay_mask(predicate == mask.visible_if, mask.steps)
            shown.append(jnp.broadcast_to(entries, logits.shape))
        if by_value:
            shown.append(logits > jnp.asarray(HIDDEN, logits.dtype))
        if not shown:
            return None
        widths = [(0, int(softmax.extra is not None and axis in softmax.axes)) for axis in range(logits.ndim)]
        return jnp.pad(functools.reduce(jnp.logical_and, shown), widths, constant_values=True)

    def extra_logit(self, logits: Float[Array, "*shape"], values: Values) -> Array:
        """Returns the extra logit of each row, laid out as one more entry."""
        extra = self.softmax.extra
        assert extra
        logit = lookup(extra.logit, values) if isinstance(extra.logit, Value) else extra.logit
        logit = jnp.asarray(logit, logits.dtype) * jnp.asarray(extra.factor, logits.dtype)
        if extra.steps:
            first = extra.steps[0]
            logit = _replay(jnp.broadcast_to(logit, first.node.inputs[first.position].shape), extra.steps, values)
        row = [1 if axis in self.softmax.axes else size for axis, size in enumerate(logits.shape)]
        return jnp.broadcast_to(logit.astype(logits.dtype), extra.shape).reshape(row)

    def weigh(self, rows: SiteLogits) -> Float[Array, "*shape"]:
        """Returns new weights; a row with nothing visible is as `empty` says."""
        logits, axis, where = rows.logits, rows.axis, rows.where
        assert self.normalizer
        weights = weigh(self.normalizer, logits, axis, where)
        if where is None or self.empty == "zeros":
            return weights
        kept = ~jnp.any(where, axis, keepdims=True) & jnp.any(logits > -jnp.inf, axis, keepdims=True)
        if self.traced.hidden.one_number:
            # Equal logits c, c, …, c of n entries: e^c / (n e^c) = 1 / n, with no softmax to compute.
            size = math.prod(logits.shape[index] for index in (axis if isinstance(axis, tuple) else (axis,)))
            return jnp.where(kept, jnp.asarray(1 / size, weights.dtype), weights)
        # From the logits, unless exponentials are masked: the model's own equations divide a row of only -inf by NaN,
        # and would send NaN back to its logits, though the choice leaves that row out.
        original = rows.model_weights() if self.softmax.masks else weigh(maps.softmax, logits, axis)
        return jnp.where(kept, original.astype(weights.dtype), weights)


def _replay(weights: Array, steps: Iterable[Step], values: Values) -> Array:
    """Returns what the model's steps make of weights in the place of its exponentials."""
    for node, position, result in steps:
        if node.name not in IDENTITIES:
            moved = weights.astype(node.inputs[position].dtype)
            operands = [moved if at == position else lookup(value, values) for at, value in enumerate(node.inputs)]
            weights = execute_equation(node.equation, operands)[result]
    return weights


def _replay_mask(mask: Bool[Array, "..."], steps: Iterable[Step]) -> Bool[Array, "..."]:
    """Returns the mask of what a model makes of masked numbers; what it puts beside them is visible."""
    for node, position, result in steps:
        match node.name:
            case "concatenate":
                parts = [jnp.ones(operand.shape, bool) for operand in node.inputs]
                parts[position] = mask
                mask = jnp.concatenate(parts, node.params["dimension"])
            case "pad":
                mask = jax.lax.pad(mask, jnp.asarray(True), node.params["padding_config"])
            case name if name in VIEWS - IDENTITIES:
                mask = execute_equation(node.equation, [mask])[result]
            case _:
                mask = jnp.broadcast_to(mask, node.outputs[result].shape)
    return mask
