"""Means over seeds, their 95 % intervals by Student's t, and the paired t-test, one or many at once.

By the two functions of `scipy.special` that `scipy.stats` uses for them, which takes a second longer to load.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
import scipy  # whose parts load when they are first used, as some take seconds
from jaxtyping import Float


def half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Half the interval of the mean by Student's t, at 95 % or another level; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(scipy.special.stdtrit(len(values) - 1, (1 + level) / 2) * _standard_error(values))


def _standard_error(values: Sequence[float] | Float[np.ndarray, " values"]) -> float:
    """Returns the standard error of the mean of independent values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def paired_p_value(values: Sequence[float], reference: Sequence[float]) -> float | None:
    """Two-sided p of the paired t-test; 1 where no pair differs, None without pairs or where all differ alike.

    Differences count as alike within the rounding of the values. None also where a value is not finite.
    """
    if len(values) < 2 or len(values) != len(reference):
        return None
    differences = np.subtract(values, reference)
    if not np.isfinite(differences).all():
        return None
    rounding = 4 * np.finfo(np.float64).eps * max(np.abs(values).max(), np.abs(reference).max())
    if np.ptp(differences) <= rounding:
        return 1.0 if np.abs(differences).max() <= rounding else None
    return float(2 * scipy.special.stdtr(len(values) - 1, -abs(np.mean(differences)) / _standard_error(differences)))


def corrected(p_values: Sequence[float | None]) -> list[float | None]:
    r"""The p-values of several tests, corrected so that 5 % is the risk of any false one among them.

    $$\tilde p_{(i)} = \max_{j \le i} \min\big(1, (m - j + 1)\, p_{(j)}\big)$$

    for the j-th smallest of m. None is no test and stays.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.

    >>> corrected([0.04, None, 0.01, 0.3])
    [0.08, None, 0.03, 0.3]
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        found[index] = largest = max(largest, min(1.0, (len(order) - rank) * p))
    return found


MOST_FLIPS = 2**14
"""Up to so many flips of signs all are looked at; of more, so many are drawn."""


def max_t_p_values(differences: Float[np.ndarray, "tests seeds"]) -> list[float]:
    r"""Returns the p-values of several paired tests on the same seeds, corrected for all of them by flips of signs.

    $$\tilde p_i = \#\{s : \max_j |t_j(s)| \ge |t_i|\} \,/\, \#\{s\}, \qquad s \in \{-1, 1\}^{\text{seeds}}$$

    Where a method changes nothing, the differences of a seed are as likely with the other sign. A flip takes all tests
    of a seed, so what the tests share counts, which Holm's correction leaves out. No test may have differences that
    are all alike.

    Source: Westfall and Young, "Resampling-Based Multiple Testing", 1993.

    >>> max_t_p_values(np.array([[1.0, 2.0, 3.0, 2.5], [0.1, -0.2, 0.3, -0.1]]))
    [0.125, 1.0]
    """
    seeds = differences.shape[1]
    if 2**seeds <= MOST_FLIPS:
        signs = 1.0 - 2 * (np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1)
    else:
        drawn = np.random.default_rng(0).choice([-1.0, 1.0], (MOST_FLIPS - 1, seeds))
        signs = np.concatenate([np.ones((1, seeds)), drawn])
    means = signs @ differences.T / seeds
    # The sum of squares is the same under every flip. Of one that flips all differences to one value, t is infinite.
    spread = np.maximum((differences**2).mean(1) - means**2, np.finfo(np.float64).tiny)
    t = np.abs(means) / np.sqrt(spread)
    return (t.max(1)[:, None] >= t[0] * (1 - 1e-9)).mean(0).tolist()


def detectable(differences: Sequence[float]) -> float | None:
    """Returns the mean difference that a paired t-test of 5 % finds in 80 % of the cases, were it there.

    By the normal approximation of the power, with the spread of these differences: (t of 97.5 % + t of 80 %) standard
    errors. None for fewer than two.
    """
    if len(differences) < 2:
        return None
    return float(sum(scipy.special.stdtrit(len(differences) - 1, (0.975, 0.8))) * _standard_error(differences))


def over_seeds(
    frame: pl.DataFrame, keys: Sequence[str], field: str, low: float | None = None, high: float | None = None
) -> pl.DataFrame:
    """The mean of a field and its 95 % interval: the keys, `value`, `low` and `high`, a row per combination of keys.

    Rows whose field is null are left out. Combinations keep the order in which they first appear. The interval is cut
    to `low` and `high`, what the quantity can be; of one value alone it is that value.

    >>> frame = pl.DataFrame({"n": [4, 4, 4, 8], "seed": [0, 1, 2, 0], "accuracy": [97.0, 98.0, 99.0, 96.0]})
    >>> for row in over_seeds(frame, ["n"], "accuracy", high=100.0).rows():
    ...     print("{}: {:.2f}, {:.2f} to {:.2f}".format(*row))
    4: 98.00, 95.52 to 100.00
    8: 96.00, 96.00 to 96.00
    """
    groups = frame.drop_nulls(field).group_by(keys, maintain_order=True).agg(field)
    values = groups[field].to_list()
    means = np.array([np.mean(of_seeds) for of_seeds in values], np.float64)
    halves = np.array([half_width(of_seeds) or 0.0 for of_seeds in values], np.float64)
    ends = pl.DataFrame({"value": means, "low": means - halves, "high": means + halves})
    return groups.select(keys).hstack(ends.with_columns(pl.col("low", "high").clip(low, high)))
