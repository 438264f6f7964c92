"""Computes new weights in the place of a softmax, while its function runs."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers import maps
from softmax_jax.normalizers.layout import Along, Axis, Layout, Segments
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.row import HIDDEN, weigh
from softmax_jax.normalizers.segments import weigh_segments
from softmax_jax.transforms.execution import Records, Values, execute_equation, lookup, tracing_context
from softmax_jax.transforms.exponents import Mask
from softmax_jax.transforms.layouts import Step
from softmax_jax.transforms.program import IDENTITIES, VIEWS, Value
from softmax_jax.transforms.sites import TracedSite
from softmax_jax.transforms.turns import NumbersByTurn

Empty = Literal["model", "zeros"]


class SiteLogits(NamedTuple):
    """The logits of a site, while its function runs."""

    logits: Float[Array, "*shape"]
    axis: Axis
    layout: Layout
    """Where the entries of each row lie: along the axis, or in segments of it."""
    where: Bool[Array, "*shape"] | None
    """True at the logits that the model does not hide."""
    model_weights: Callable[[], Float[Array, "*shape"]]
    """Computes the weights that the model has."""


Recorder = Callable[[SiteLogits, Float[Array, "*shape"]], Any]
"""Takes the logits of a site and the weights that they get; returns a record."""


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
        site = self.traced.site
        with self.named_errors():
            self.numbers = NumbersByTurn(self.normalizer, site.turns if self.traced.scan else None, len(site.shape))

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """Puts the site before the message of an error."""
        site = self.traced.site
        try:
            yield
        except (TypeError, ValueError) as error:
            turns = f", in a scan of {site.turns} turns" if site.turns > 1 else ""
            raise type(error)(f"site {site.index}, {site.scope} at {site.line}{turns}: {error}") from None

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
                with self.named_errors():
                    weights = self.weigh(rows, self.numbers.at_turn(values))
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
            shown = self.visible(softmax.masks, False, values)
            if isinstance(layout, Segments):
                return weigh_layout(maps.softmax, logits, layout, shown)
            return jax.nn.softmax(logits, softmax.axes, where=shown)

        where, layout = self.visible(hidden.masks, hidden.by_value, values), self.layout(values)
        return SiteLogits(logits, self.traced.site.axis, layout, where, model_weights)

    def layout(self, values: Values) -> Layout:
        """Returns where the entries of each row lie."""
        if not (segments := self.softmax.segments):
            return Along(self.traced.site.axis)
        ids = jnp.asarray(lookup(segments.ids, values), jnp.int32)
        if segments.from_end:
            ids = jnp.where(ids < 0, ids + segments.number, ids)
        return Segments.of(ids, segments.number, segments.ascending)

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

    def weigh(self, rows: SiteLogits, normalizer: Normalizer) -> Float[Array, "*shape"]:
        """Returns new weights; a row with nothing visible is as `empty` says."""
        logits, layout, where = rows.logits, rows.layout, rows.where
        weights = weigh_layout(normalizer, logits, layout, where)
        if where is None or self.empty == "zeros":
            return weights
        kept = (layout.sum(where) == 0) & (layout.sum(logits > -jnp.inf) > 0)
        if isinstance(layout, Segments):
            kept &= layout.inside(logits.ndim)
        if self.traced.hidden.one_number and not self.softmax.segments:
            # Equal logits c, c, …, c of n entries: e^c / (n e^c) = 1 / n, with no softmax to compute.
            size = math.prod(logits.shape[index] for index in self.softmax.axes)
            return jnp.where(kept, jnp.asarray(1 / size, weights.dtype), weights)
        # From the logits, unless exponentials are masked: the model's own equations divide a row of only -inf by NaN,
        # and would send NaN back to its logits, though the choice leaves that row out.
        original = rows.model_weights() if self.softmax.masks else weigh_layout(maps.softmax, logits, layout)
        return jnp.where(kept, original.astype(weights.dtype), weights)


def weigh_layout(
    part: Any, logits: Float[Array, "*shape"], layout: Layout, where: Bool[Array, "*shape"] | None = None
) -> Float[Array, "*shape"]:
    """Weighs logits whose rows lie along an axis, or in segments, by a map or a normalizer."""
    if not isinstance(layout, Segments):
        return weigh(part, logits, layout.axis, where)
    return weigh_segments(part, logits, layout, where, layout.ids - 1, low_hides=False)


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
