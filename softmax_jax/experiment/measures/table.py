"""The table of measures: what each is of one set under one normalizer, and how the sets of a seed become one number.

A new measure is one function and one entry here. Those of `EVALUATION` come in every evaluation: its file, its summary
and, unless `tables` says otherwise, the tables for the terminal and the page; those of `REPORT` are computed where they
are asked for by name.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from softmax_jax import theory
from softmax_jax.normalizers.arithmetic import place_of_largest
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.row import critical_beta

Anything = Any
"""An array, or None for a task that has no such thing."""
BASELINE = "softmax"
"""The normalizer that others are compared with."""
KEYS = ("normalizer", "n", "seed")
"""Columns of the frame before those of the measures."""
TOP = 16
"""Items of a set to keep the weights of."""
CONFIDENCE_BINS = 15


class Seen(NamedTuple):
    """One set, and one row of its attention, under one normalizer: what a measure may look at."""

    scores: Float[Array, "*answers classes"]
    answer: Int[Anything, "*answers"]
    accuracy: Float[Array, ""]
    """Of the set, in percent, as its task says."""
    loss: Float[Array, ""]
    """Of the set, as its task says."""
    logits: Float[Anything, " items"] = None
    where: Bool[Anything, " items"] = None
    weights: Float[Anything, " items"] = None
    beta: Float[Anything, ""] = None
    """Inverse temperature of the row; NaN unless the map is softmax."""
    extrapolates: Bool[Anything, ""] = None
    """Says whether the scale is asked about an entropy beyond those that it was fitted to."""
    rho: Float[Anything, " items"] = None
    """The priorities of the items, for a task that has them; -inf where masked."""


def mean(values: Float[np.ndarray, "sets *rest"]) -> float:
    """The mean over the sets."""
    return float(values.mean(dtype=np.float64))


class Measure(NamedTuple):
    """One entry of the table."""

    compute: Callable[[Any], Array]
    """A number, or several, of one set or of one row of its attention: from `Seen`, with the fields in `needs`."""
    caption: str
    unit: str = ""
    form: str = ".4g"
    """How a value is printed."""
    aggregate: Callable[[Any], float | None] | None = mean
    """From the numbers of all sets of a seed to one, None where the measure does not apply; without it they are kept
    by set alone, and are no column of the frame."""
    needs: tuple[str, ...] = ("weights",)
    """Fields of `Seen` without which the measure is left out, as ρ for a task without priorities."""
    tables: Literal["all", "full", "none"] = "all"
    """Which tables for readers have it: those of a terminal and of the page; only those of `evaluate.py --full`; or
    none, where it stands in the files alone."""

    @property
    def of_row(self) -> bool:
        """Says whether it looks at a row of attention, rather than at a whole set."""
        return not {"logits", "weights", "rho"}.isdisjoint(self.needs)


def max_weight(seen: Seen) -> Array:
    """The largest weight."""
    return jnp.abs(seen.weights).max()


def confidence_and_success(seen: Seen) -> Array:
    """The largest class probability, and whether that class is the answer."""
    confidence = jax.nn.softmax(seen.scores).max(-1)
    return jnp.stack([confidence, (seen.scores.argmax(-1) == seen.answer).astype(confidence.dtype)], -1)


def calibration_error(values: Float[np.ndarray, "*sets 2"]) -> float:
    r"""The expected calibration error in percent, over equal bins of the confidence.

    $$100 \sum_b \frac{n_b}{n}\,\big|\text{accuracy}_b - \text{confidence}_b\big|$$

    Source: Guo et al., "On calibration of modern neural networks", arXiv 1706.04599.

    >>> calibration_error(np.array([[0.9, 1.0], [0.9, 0.0], [0.5, 1.0], [0.5, 0.0]])).__round__(6)
    20.0
    """
    confidence, success = values.reshape(-1, 2).astype(np.float64).T
    bins = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    # In each bin the sum of n · (accuracy - confidence) / n.
    return float(100 * np.abs(np.bincount(bins, success - confidence)).sum() / len(bins))


EVALUATION: dict[str, Measure] = {
    "accuracy": Measure(lambda seen: seen.accuracy, "Accuracy", "%", ".2f", needs=()),
    "loss": Measure(lambda seen: seen.loss, "Cross-entropy", "nats", ".3f", needs=(), tables="full"),
    "entropy": Measure(
        lambda seen: weight_entropy(seen.weights), "Entropy of the weights", "nats", ".3f", tables="none"
    ),
    "max_weight": Measure(max_weight, "Largest weight", "", ".3f", tables="none"),
    "calibration": Measure(
        confidence_and_success,
        "Expected calibration error",
        "%",
        ".2f",
        calibration_error,
        needs=("answer",),
        tables="full",
    ),
}
"""Columns of evaluation.csv, after `KEYS`."""


def extrapolated(seen: Seen) -> Array:
    """Says whether the entropy lies beyond what an adaptive normalizer was fitted to, in percent; 0 for all others."""
    return 100 * seen.extrapolates.astype(jnp.float32)


def true_weight(seen: Seen) -> Array:
    """The weight of the true item, the one with the largest ρ."""
    return seen.weights[place_of_largest(seen.rho)]


def rank(seen: Seen) -> Array:
    """The rank of that weight, 1 for the largest; equal weights share their mean rank."""
    place = place_of_largest(seen.rho)
    weight = seen.weights[place]
    # Itself by its place: where it is computed twice, it need not equal itself.
    others = seen.where & (jnp.arange(seen.weights.size) != place)
    above, equal = others & (seen.weights > weight), others & (seen.weights == weight)
    return 1 + above.sum(dtype=weight.dtype) + equal.sum(dtype=weight.dtype) / 2


def top_rho(seen: Seen) -> Array:
    """The largest ρ, in descending order."""
    return jax.lax.top_k(seen.rho, min(TOP, len(seen.rho)))[0]


def top_weights(seen: Seen) -> Array:
    """The weights of the items with the largest ρ, in that order."""
    return seen.weights[jax.lax.top_k(seen.rho, min(TOP, len(seen.rho)))[1]]


def nearest_counts(items: int, n: Any) -> Any:
    """How many of the largest logits to take the spread of, in a program for `items` items: 2, 4, 8, … and all n.

    >>> nearest_counts(16, 10).tolist()
    [2, 4, 8, 10]
    """
    return jnp.minimum(2 ** jnp.arange(1, max(2, items.bit_length() + (items & (items - 1) > 0))), n)


def spread(seen: Seen) -> Array:
    """The distance from the largest visible logit to the smallest."""
    return jnp.max(seen.logits, where=seen.where, initial=-jnp.inf) - jnp.min(
        seen.logits, where=seen.where, initial=jnp.inf
    )


def row_of_logits(seen: Seen) -> Array:
    """The inputs of the bounds of the theory: n, β, and the spreads of the largest 2, 4, 8, … n logits of a row."""
    n = seen.where.sum()
    ordered = jnp.sort(jnp.where(seen.where, seen.logits, -jnp.inf), descending=True)
    nearest = ordered[0] - ordered[nearest_counts(len(ordered), n) - 1]
    return jnp.concatenate([jnp.stack([n.astype(nearest.dtype), seen.beta]), nearest])


def critical(seen: Seen) -> Array:
    """The critical inverse temperature of the row of logits, whatever weighs them."""
    return critical_beta(seen.logits, seen.where)


def median(values: Float[np.ndarray, "sets *rest"]) -> float:
    """The median over the sets."""
    return float(np.median(values))


def bound_of_softmax(
    number: Callable[[Any, Any, Any], Any], over: Callable[..., Any] = np.mean
) -> Callable[[Any], float | None]:
    """Returns the aggregate of a number of `row_of_logits`: its mean over the rows, None unless the map is softmax.

    Each bound is the mean over rows of the bound of each row at its own n, spread and β, so it holds for the mean.
    """

    def aggregate(values: Float[np.ndarray, "rows numbers"]) -> float | None:
        values = values[values[:, 0] > 0]  # a row with nothing visible has no bounds
        if not len(values) or np.isnan(values[:, 1]).any():
            return None
        numbers = []
        for n in np.unique(values[:, 0]):
            alike = values[values[:, 0] == n]
            numbers.append(np.broadcast_to(number(int(n), alike[:, 1], alike[:, 2:]), len(alike)))
        return float(over(np.concatenate(numbers).astype(np.float64)))

    return aggregate


def largest_weight_from_nearest(n: int, beta: Any, spreads: Any) -> Any:
    """The bound of each set's largest weight by the logits nearest to the top."""
    counts = np.minimum(2 ** np.arange(1, spreads.shape[1] + 1), n)
    return theory.largest_weight_from_nearest(counts, spreads, beta)


def least_entropy(n: int, beta: Any, spreads: Any) -> Any:
    """The least entropy of each set; one weight of at most α leaves at least -log α."""
    by_nearest = -np.log(largest_weight_from_nearest(n, beta, spreads))
    return np.maximum(theory.entropy_bounds(n, spreads[:, -1], beta).lower, by_nearest)


def bound(caption: str, unit: str, number: Callable[[Any, Any, Any], Any], **over: Callable[..., Any]) -> Measure:
    """Returns the entry of a number that follows from `row_of_logits`."""
    return Measure(row_of_logits, caption, unit, aggregate=bound_of_softmax(number, **over), needs=("logits",))


def exact_match(seen: Seen) -> Array:
    """Says whether all parts of an answer are right, in percent."""
    return 100 * (seen.scores.argmax(-1) == seen.answer).all().astype(jnp.float32)


REPORT: dict[str, Measure] = {
    "exact_match": Measure(exact_match, "Answers right to their end", "%", ".1f", needs=("answer",)),
    "extrapolated": Measure(extrapolated, "Rows beyond the fitted range", "%", ".0f", needs=("logits",)),
    "rank": Measure(rank, "Rank of the true item's weight", needs=("rho",)),
    "true_weight": Measure(true_weight, "Weight of the true item", needs=("rho",)),
    "top_rho": Measure(top_rho, "The largest ρ", aggregate=None, needs=("rho",)),
    "top_weights": Measure(top_weights, "Weights of the items of the largest ρ", aggregate=None, needs=("rho",)),
    "spread": Measure(spread, "Spread of the logits", needs=("logits",)),
    "beta": bound("Inverse temperature", "", lambda n, beta, spreads: beta),
    "largest_reach": bound("Largest βδ of a set", "", lambda n, beta, spreads: beta * spreads[:, -1], over=np.max),
    "critical_beta": Measure(critical, "Critical inverse temperature, median", aggregate=median, needs=("logits",)),
    "entropy_lower": bound("Least entropy", "nats", least_entropy),
    "entropy_upper": bound("Most entropy", "nats", lambda n, *_: np.log(n)),
    "max_weight_lower": bound("Least largest weight", "", lambda n, *_: 1 / n),
    "max_weight_upper": bound(
        "Most largest weight by the whole spread",
        "",
        lambda n, beta, spreads: theory.largest_weight_bounds(n, spreads[:, -1], beta).upper,
    ),
    "max_weight_upper_nearest": bound("Most largest weight by the nearest logits", "", largest_weight_from_nearest),
}
"""What only the page and the studies ask for."""
MEASURES: Mapping[str, Measure] = ChainMap(REPORT, EVALUATION)
"""Both; a measure that is added to one of them is here, too."""


TESTS = {
    "low": (".1f", "lower end of Wilson's 95 % interval of the accuracy, over sets"),
    "high": (".1f", "its upper end"),
    "p": (".1g", "McNemar's exact test against softmax on the same sets, corrected by Holm for all in the table"),
}
"""Columns of a summary with tests over sets, each with its form and its caption."""

OF_SET = ("scores", "answer", "accuracy", "loss")
"""Fields of `Seen` that all rows of a set have in common."""


def values_of(measures: Sequence[str], whole: Seen, rows: Seen | None = None) -> dict[str, Float[Array, "*numbers"]]:
    """Returns the measures of one set, from the whole set and from its rows; those that it cannot have are left out.

    The fields of `rows` that are not in `OF_SET` have a leading axis of rows, and so have the measures of rows.
    """
    values = {}
    for name in measures:
        measure = MEASURES[name]
        seen = rows if measure.of_row else whole
        if seen is None or any(getattr(seen, field) is None for field in measure.needs):
            continue
        shared = {field: value is None or field in OF_SET for field, value in seen._asdict().items()}
        axes: Any = seen._replace(**{field: None if same else 0 for field, same in shared.items()})
        values[name] = jax.vmap(measure.compute, in_axes=(axes,))(seen) if measure.of_row else measure.compute(seen)
    return values
