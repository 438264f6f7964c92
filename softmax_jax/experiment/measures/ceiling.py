"""Accuracies of max retrieval where rounding makes items equal: of the best guess, and of one among equals."""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy  # whose parts load when they are first used, as some take seconds
from jaxtyping import Float

from softmax_jax.experiment.tasks.retrieval_model import CLASSES
from softmax_jax.experiment.tasks.rounded_products import BITS

BINADES = 12
"""From one power of two to the next below it; the largest of two items or more lies below all of these in no set."""
NEGLIGIBLE = 1e-9


@functools.cache
def expected_ceiling(precision: str, items: int) -> float:
    r"""Returns the percent of sets of uniform ρ that the best guess answers, after rounding to a precision of `BITS`.

    $$\mathbb E\Big[\max_c \frac{N_c}{k}\Big]$$

    The best guess is the class that most of the k items have which tie for the largest, $N_c$ of them.

    >>> [round(expected_ceiling("bfloat16", n), 1) for n in (16, 1024, 16384)]
    [98.6, 61.0, 19.5]
    """
    return 100 * _mean_over_ties(significant_bits(precision), items, largest_shares)


def significant_bits(precision: str) -> int:
    """Returns the binary digits that a precision of `BITS` keeps: those that are stored, and the leading one.

    >>> significant_bits("bfloat16")
    8
    """
    return BITS[precision][1] + 1


@functools.cache
def accuracy_of_ties(bits: int, items: int) -> float:
    r"""Returns the percent of sets of uniform ρ answered by one of the items that tie, after rounding to so many bits.

    $$\tfrac{1}{10} + \tfrac{9}{10} \, \mathbb E\Big[\frac{1}{k}\Big]$$

    Of the k items that tie for the largest once ρ is rounded to `bits` significant bits, one is chosen at random. It is
    the true one in a share 1/k of the sets; of the others every tenth has the class of the true one. Nothing is trained
    or fitted: an accuracy is compared with this to see what rounding by itself would explain. It is no mechanism, as
    softmax averages the values of items that tie.

    >>> [round(accuracy_of_ties(8, n), 1) for n in (16, 1024, 16384)]
    [98.6, 58.9, 12.9]
    """
    return 100 * _mean_over_ties(bits, items, lambda most: 1 / CLASSES + (1 - 1 / CLASSES) / np.arange(1, most + 1))


def _mean_over_ties(bits: int, items: int, share: Callable[[int], Float[np.ndarray, " most"]]) -> float:
    r"""Returns the mean of a share of the k items that tie for the largest of a set.

    $$\sum_v \sum_k \binom{n}{k} w_v^k \, b_v^{\,n-k} \; s_k$$

    A rounded number v is the largest of a set, k times, if k of its n items fall among those that round to v, which are
    a share w of all, and the others among the share b below. `share` gives $s_1, s_2, \dots$ up to the most that tie.
    """
    steps = 2 ** (bits - 1)
    values = np.concatenate([*((1 + np.arange(steps) / steps) / 2**binade for binade in range(BINADES, 0, -1)), [1.0]])
    edges = np.concatenate([[0], (values[1:] + values[:-1]) / 2, [1]])
    edges = edges[np.searchsorted(edges, NEGLIGIBLE ** (1 / items)) - 1 :]
    below, width = edges[:-1], np.diff(edges)
    # Below 1 the numbers lie 1/(2 steps) apart, so this many items fall on one; 12 deviations more never do.
    mean = items / (2 * steps)
    k = np.arange(1, min(items, math.ceil(mean + 12 * mean**0.5 + 12)) + 1)[:, None]
    # The binomial chances by logarithms of factorials: scipy.stats, which has them, takes half a second to load.
    log_ways = scipy.special.gammaln(items + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(items - k + 1)
    chances = np.exp(log_ways + k * np.log(width) + scipy.special.xlogy(items - k, below))
    return float((share(len(k)) @ chances).sum())


def largest_shares(most: int) -> Float[np.ndarray, " most"]:
    """Returns the mean share of the class that most have of 1, 2, … `most` items of `CLASSES` classes.

    Counts of classes are independent Poisson numbers, given their sum. So the chance that none exceeds m is a power of
    a cut generating function, by coefficient over that of the sum; and E[max] is the sum over m of P(max > m).

    >>> largest_shares(3).round(3).tolist()
    [1.0, 0.55, 0.43]
    """
    counts = np.arange(most + 1)
    means = most / 2 / CLASSES, most / 2
    class_chances, total_chances = (
        np.exp(counts * math.log(mean) - mean - scipy.special.gammaln(counts + 1)) for mean in means
    )
    largest = np.zeros(most + 1)
    for m in counts:
        none_above = np.ones(1)
        for _ in range(CLASSES):
            none_above = np.convolve(none_above, class_chances[: m + 1])[: most + 1]
        largest += 1 - np.pad(none_above, (0, most + 1 - len(none_above))) / total_chances
    return largest[1:] / counts[1:]
