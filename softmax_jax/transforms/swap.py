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
from softmax_jax.transforms.program import CUSTOM, LAID, SAME, Frame, Node, Program, Run, Value, evaluate, trace, within
from softmax_jax.transforms.sites import UNREADABLE, Place, Site, check_callable, places

Where = Callable[[Site], bool] | None
"""Says of a site whether it is chosen; None chooses every attention site."""
Normalizers = NormalizerLike | Mapping[Any, NormalizerLike]
"""One for all chosen sites, or by index, or by scope, in which `*` stands for anything."""
Empty = Literal["model", "zeros"]
INSIDE = "swap inside, before the derivative is taken, as in jax.grad(sj.swap(f, ...))"
"""What to do about a derivative in the function."""
Values = dict[Value, Any]
Records = dict[str, Any]
Replace = Callable[[list[Any], Values], tuple[list[Any], Records]]
"""Takes the operands of an equation, and all values so far; returns its results and what is to be recorded by name."""


class Rows(NamedTuple):
    """The logits of a site, while its function runs."""

    logits: Float[Array, "*shape"]
    axis: Axis
    where: Bool[Array, "*shape"] | None
    """True at the logits that the model does not hide."""
    original: Callable[[], Float[Array, "*shape"]]
    """Computes the weights that the model has."""


Measure = Callable[[Rows, Float[Array, "*shape"]], Any]
"""Takes the rows of a site and the weights that they get; returns a record."""


def swap(
    fun: Callable[..., Any], normalizer: Normalizers, *, where: Where = None, empty: Empty = "model"
) -> Callable[..., Any]:
    r"""Returns the function with a normalizer in the place of the softmax of its attention.

    $$w = \operatorname{softmax}(z) \quad\to\quad w = \operatorname{normalizer}(z)$$

    `normalizer` is a `Normalizer`, its name, a map or a function with the signature of `jax.nn.softmax`, or several
    of these by pattern: `{"*/block_3": "ssmax(s=0.4)", 7: "entmax15"}`, of which the first that matches a site counts,
    and a site that none matches stays. A pattern is an index in `sites(fun)(...)`, or a scope in which `*` stands for
    anything. `where` says of a `Site` whether it is chosen;
    without it those are chosen whose use is attention, and those that are named by index. Numbers per head have the
    shape (heads, 1, 1) for logits of shape (batch, heads, queries, keys).

    The mask is that of the model: entries that it hides with a predicate or a large negative number are hidden before
    any scale multiplies, get weight 0, and do not count in n. `empty` is for a row with nothing visible: "model" leaves
    it as the model has it, often uniform; "zeros" gives it no weight. A row of only -inf gets 0. Under "model", a swap
    to softmax leaves a site as it is.

    The function is traced at every call, as under `jax.grad`: wrap the result in `jax.jit`. It composes with `jit`,
    `grad`, `vmap`, `scan` and `checkpoint`. Swap first and differentiate after: a function that takes the derivative
    of a chosen softmax itself is refused, since only the forward pass would change. A custom rule for derivatives
    around a swapped softmax (`jax.custom_jvp`, `jax.custom_vjp`) gives way to the derivative of the new normalizer;
    `sites` names a rule that JAX does not define. A normalizer that is an argument of the compiled function may change
    without a new compilation. Objects of `flax.nnx` among the arguments keep what `fun` writes to them, such as a
    cache.

    Raises ValueError for a function without a softmax, a pattern that matches nothing, a chosen site that cannot be
    read or whose derivative `fun` takes itself, numbers that do not fit a site, and an object of NNX that `fun` writes
    to and is not given; TypeError for what is no function or normalizer.

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
    given = normalizers if isinstance(normalizers, Mapping) else {"*": normalizers}
    return {pattern: as_normalizer(one) for pattern, one in given.items()}


def transform(
    fun: Callable[..., Any],
    normalizers: Mapping[Any, Normalizer | None],
    where: Where = None,
    empty: Empty = "model",
    measure: Measure | None = None,
) -> Callable[..., tuple[Any, list[tuple[Site, Any]]]]:
    """Returns a function that returns what `fun` returns under normalizers by pattern, and a record of each site.

    None as a normalizer leaves the weights of the model, which are measured. Raises as `swap` does.
    """
    check_callable(fun)
    checks.one_of("empty", empty, get_args(Empty))

    def transformed(*args: Any, **kwargs: Any) -> tuple[Any, list[tuple[Site, Any]]]:
        program = trace(fun, args, kwargs)
        chosen = choose(places(program, fun), normalizers, where)
        replacements = [Replacement(place, normalizer, empty, measure) for place, normalizer in chosen.items()]
        replacements = {one.softmax.node: one for one in replacements if one.changes or measure}
        check_derivatives(replacements.values())
        changed = {node for node, one in replacements.items() if one.changes}
        needed = [value for one in replacements.values() for value in one.needed()]
        results, records = execute(program, replacements, changed, needed)
        return program.restore(results), [(place.site, records.get(str(place.site.index))) for place in chosen]

    return transformed


def choose(
    found: list[Place], normalizers: Mapping[Any, Normalizer | None], where: Where
) -> dict[Place, Normalizer | None]:
    """Returns the chosen sites with the normalizer of the first pattern that matches each.

    Raises ValueError for a pattern that matches no site, for a chosen site that cannot be read, and if none is chosen.
    """
    chosen: dict[Place, Normalizer | None] = {}
    for pattern, normalizer in normalizers.items():
        for place in _matching(found, pattern):
            site, named = place.site, isinstance(pattern, int)
            if not (where(site) if where else named or site.use in ("attention", *UNREADABLE)):
                continue
            if place.softmax is None:
                why = UNREADABLE.get(site.use, UNREADABLE["unread"])
                remedy = INSIDE if site.use == "derivative" else "choose the model's plain attention"
                raise Refusal(
                    f"site {site.index} at {site.line} is {site.what}, {why}: {remedy}, or leave the "
                    "site as it is with where=lambda site: site.use == 'attention'"
                )
            chosen.setdefault(place, normalizer)
    if not chosen:
        listed = ", ".join(f"{place.site.index}: {place.site.scope} ({place.site.use})" for place in found)
        raise Refusal(
            f"no site is chosen among {listed}: choose some by where=, or by their index; in a function that was "
            "swapped already, probe and swap the original"
        )
    return chosen


def check_derivatives(replacements: "Iterable[Replacement]") -> None:
    """Raises ValueError for weights that change while a derivative, taken in the function itself, would stay."""
    for one in replacements:
        if one.changes and one.place.derived:
            site = one.place.site
            raise Refusal(
                f"site {site.index} at {site.line} is a softmax whose derivative the function takes itself, and a swap "
                f"would leave: {INSIDE}"
            )


def _matching(found: list[Place], pattern: str | int) -> list[Place]:
    """Returns the places whose site a pattern matches. Raises ValueError, with the nearest scopes first, for none."""
    matched = [place for place in found if place.site.matches(pattern)]
    if not matched:
        if isinstance(pattern, int):
            raise Refusal(f"there is no site {pattern}: the sites are 0 to {len(found) - 1}")
        scopes = list(dict.fromkeys(place.site.scope for place in found))
        near = sorted(scopes, key=lambda scope: -difflib.SequenceMatcher(None, pattern, scope).ratio())
        raise Refusal(f"no site matches {pattern!r}; the scopes are {', '.join(map(repr, near))}")
    return matched


@dataclasses.dataclass
class Replacement:
    """Computes new weights in the place of a softmax, and measures them; without a normalizer only measures it."""

    place: Place
    normalizer: Normalizer | None
    empty: Empty
    measure: Measure | None

    def __post_init__(self) -> None:
        assert self.place.softmax
        self.softmax = self.place.softmax

    @property
    def changes(self) -> bool:
        """Says whether weights are computed: softmax is what the model has, except for its empty rows."""
        if self.normalizer is None:
            return False
        softmax = type(self.normalizer.map) is maps.Softmax and self.normalizer.scale is None
        return not (softmax and self.empty == "model")

    def needed(self) -> list[Value]:
        """Returns the values that it looks up."""
        return [*self.softmax.needed(), *(mask.predicate for mask in self.place.hidden.masks)]

    def __call__(self, operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        """Returns the results of the equation, from its operands and all values so far, and the record by index."""
        softmax, site, equation = self.softmax, self.place.site, self.softmax.node.equation
        (original,) = results = evaluate(equation, operands)
        with within(equation):
            rows = self.rows(original, values)
            if self.changes:
                try:
                    weights = self.weigh(rows)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"site {site.index}, {site.scope} at {site.line}: {error}") from None
            else:
                weights = rows.original()
            records = {str(site.index): self.measure(rows, weights)} if self.measure else {}
        if self.changes:
            if softmax.extra:
                weights = jax.lax.slice_in_dim(weights, 0, -1, axis=softmax.axes[-1])
            new = jnp.log(weights) if softmax.form == "log" else _laid_out(weights, softmax.steps, values)
            results = [new.astype(original.dtype)]
        return results, records

    def rows(self, original: Array, values: Values) -> Rows:
        """Returns the logits of the model with its mask, and with an extra logit as one more entry."""
        softmax, hidden = self.softmax, self.place.hidden
        logits, factor = values[softmax.logits], softmax.exponents.factor
        logits = logits if factor == 1 else logits * jnp.asarray(factor, logits.dtype)
        if softmax.extra:
            logits = jnp.concatenate([logits, self.extra_logit(logits, values)], softmax.axes[-1])

        def weights() -> Array:
            if softmax.plain:
                return jnp.exp(original) if softmax.form == "log" else original
            return jax.nn.softmax(logits, softmax.axes, where=self.visible(softmax.masks, False, values))

        return Rows(logits, self.place.site.axis, self.visible(hidden.masks, hidden.by_value, values), weights)

    def visible(self, masks: Iterable[Mask], by_value: bool, values: Values) -> Bool[Array, "*shape"] | None:
        """Returns True at the visible logits, the extra one included; None if none is hidden."""
        logits, softmax = values[self.softmax.logits], self.softmax
        # A mask may be of numbers, 0 where it is False.
        shown = [(_lookup(mask.predicate, values).astype(bool) == mask.visible_if, mask.steps) for mask in masks]
        seen = [jnp.broadcast_to(_mask_laid_out(*one), logits.shape) for one in shown]
        seen += [logits > jnp.asarray(HIDDEN, logits.dtype)] if by_value else []
        if not seen:
            return None
        widths = [(0, int(softmax.extra is not None and axis in softmax.axes)) for axis in range(logits.ndim)]
        return jnp.pad(functools.reduce(jnp.logical_and, seen), widths, constant_values=True)

    def extra_logit(self, logits: Float[Array, "*shape"], values: Values) -> Array:
        """Returns the extra logit of each row, laid out as one more entry."""
        extra = self.softmax.extra
        assert extra
        logit = _lookup(extra.logit, values) if isinstance(extra.logit, Value) else extra.logit
        logit = jnp.asarray(logit, logits.dtype) * jnp.asarray(extra.factor, logits.dtype)
        if extra.steps:
            first = extra.steps[0]
            logit = _laid_out(jnp.broadcast_to(logit, first.node.inputs[first.position].shape), extra.steps, values)
        row = [1 if axis in self.softmax.axes else size for axis, size in enumerate(logits.shape)]
        return jnp.broadcast_to(logit.astype(logits.dtype), extra.shape).reshape(row)

    def weigh(self, rows: Rows) -> Float[Array, "*shape"]:
        """Returns new weights; a row with nothing visible is as `empty` says."""
        logits, axis, where = rows.logits, rows.axis, rows.where
        assert self.normalizer
        weights = weigh(self.normalizer, logits, axis, where)
        if where is None or self.empty == "zeros":
            return weights
        kept = ~jnp.any(where, axis, keepdims=True) & jnp.any(logits > -jnp.inf, axis, keepdims=True)
        if self.place.hidden.one_number:  # softmax weighs them equally, and need not be computed
            size = math.prod(logits.shape[one] for one in (axis if isinstance(axis, tuple) else (axis,)))
            return jnp.where(kept, jnp.asarray(1 / size, weights.dtype), weights)
        # From the logits, unless exponentials are masked: the model's own equations divide a row of only -inf by NaN,
        # and would send NaN back to its logits, though the choice leaves that row out.
        original = rows.original() if self.softmax.masks else weigh(maps.softmax, logits, axis)
        return jnp.where(kept, original.astype(weights.dtype), weights)


def _lookup(value: Value, values: Values) -> Any:
    return values[value] if value.literal is None else value.literal


def _laid_out(weights: Array, steps: Iterable[Step], values: Values) -> Array:
    """Returns what the model makes of the exponentials, made of weights."""
    for node, position, result in steps:
        if node.name not in SAME:
            moved = weights.astype(node.inputs[position].dtype)
            operands = [moved if at == position else _lookup(one, values) for at, one in enumerate(node.inputs)]
            weights = evaluate(node.equation, operands)[result]
    return weights


def _mask_laid_out(mask: Bool[Array, "..."], steps: Iterable[Step]) -> Bool[Array, "..."]:
    """Returns the mask of what a model makes of masked numbers; what it puts beside them is visible."""
    for node, position, result in steps:
        match node.name:
            case "concatenate":
                parts = [jnp.ones(one.shape, bool) for one in node.inputs]
                parts[position] = mask
                mask = jnp.concatenate(parts, node.params["dimension"])
            case "pad":
                mask = jax.lax.pad(mask, jnp.asarray(True), node.params["padding_config"])
            case name if name in LAID - SAME:
                mask = evaluate(node.equation, [mask])[result]
            case _:
                mask = jnp.broadcast_to(mask, node.outputs[result].shape)
    return mask


def execute(
    program: Program, replacements: Mapping[Node, Replace], changed: Iterable[Node], needed: Iterable[Value] = ()
) -> tuple[list[Any], Records]:
    """Returns the results of a program with some equations replaced, and the records, those of a loop stacked.

    `changed` are the replaced equations whose results change, `needed` the values that replacements look up. Bodies
    with any of these are executed equation by equation.
    """
    changing = {frame for node in changed for frame in node.frame.around()}
    within_reach = [*replacements, *(value.producer for value in needed if value.producer)]
    opened = {frame for node in within_reach for frame in node.frame.around()}

    def run_frame(frame: Frame, outer: Values, *arrays: Any) -> tuple[list[Any], Records]:
        """Executes a body, given the values around it and its own inputs."""
        # The values of a call are those of the program around it; those of a loop are its own.
        values = outer if frame.inlined else dict(outer)
        values.update(zip(frame.inputs, arrays))
        values.update(frame.consts)
        records: Records = {}
        for node in frame.nodes:
            results, recorded = run_node(node, [_lookup(one, values) for one in node.inputs], values)
            values.update(zip(node.outputs, results))
            records |= recorded
        return [_lookup(one, values) for one in frame.outputs], records

    def run_node(node: Node, operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        if node in replacements:
            return replacements[node](operands, values)
        holder = node.holder
        if holder is None or not opened.intersection(node.frames):
            return evaluate(node.equation, operands), {}
        runs: list[Run] = [functools.partial(run_frame, frame, values) for frame in node.frames]
        with within(node.equation):
            results, records = holder.rebuild(node.equation.params, operands, runs)
        if node.name in CUSTOM and not changing.intersection(node.frames):
            results = evaluate(node.equation, operands)  # what is only measured keeps its rule for derivatives
        return results, records

    return run_frame(program.root, {}, *program.arrays)
