"""Statistics: means over seeds, their 95 % intervals by Student's t, the paired t-test, one or many at once; over sets
the interval of a share, and McNemar's test.

Those over seeds call the two functions of `scipy.special` that `scipy.stats` has them from, as that takes a second
longer to load.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl
import scipy  # whose parts load when they are first used, as some take seconds
from jaxtyping import Bool, Float


def half_width(values: Sequence[float], level: float = 0.95) -> float | None:
    """Returns half the interval of the mean by Student's t, at 95 % or another level; None below two values."""
    if len(values) < 2:
        return None
    return float(scipy.special.stdtrit(len(values) - 1, (1 + level) / 2) * _standard_error(values))


def _standard_error(values: Sequence[float] | Float[np.ndarray, " values"]) -> float:
    """Returns the standard error of the mean of independent values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def paired_p_value(values: Sequence[float], reference: Sequence[float]) -> float | None:
    """Returns the two-sided p of the paired t-test; 1 where no pair differs.

    None without pairs, for equal differences, within the rounding of the values, and where a value is not finite.
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
    r"""Returns the p-values of several tests, corrected so that 5 % is the risk of any false one among them.

    $$\tilde p_{(i)} = \max_{j \le i} \min\big(1, (m - j + 1)\, p_{(j)}\big)$$

    for the j-th smallest of m. None is no test and stays.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.

    >>> corrected([0.04, None, 0.01, 0.3])
    [0.08, None, 0.03, 0.3]
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        adjusted[index] = largest = max(largest, min(1.0, (len(order) - rank) * p))
    return adjusted


MOST_FLIPS = 2**14
"""The most flips of signs to look at: all of them up to this number, of more a draw of this number."""


def max_t_p_values(differences: Float[np.ndarray, "tests seeds"]) -> list[float]:
    r"""Returns the p-values of several paired tests on the same seeds, corrected for all of them by flips of signs.

    $$\tilde p_i = \#\{s : \max_j |t_j(s)| \ge |t_i|\} \,/\, \#\{s\}, \qquad s \in \{-1, 1\}^{\text{seeds}}$$

    Where a method changes nothing, the differences of a seed are as likely with the other sign. A flip takes all tests
    of a seed, so what the tests share counts, which Holm's correction leaves out. No test may have equal differences
    for all seeds.

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


def detectable(differences: Sequence[float], risk: float = 0.05) -> float | None:
    """Returns the true mean difference that a paired t-test finds in 80 % of the cases; None for fewer than two.

    The test is two-sided at a risk of 5 % or another. It is (t of 1 - risk/2 + t of 80 %) standard errors, a normal
    approximation with the spread of these differences.
    """
    if len(differences) < 2:
        return None
    quantiles = scipy.special.stdtrit(len(differences) - 1, (1 - risk / 2, 0.8))
    return float(sum(quantiles) * _standard_error(differences))


def over_seeds(
    frame: pl.DataFrame, keys: Sequence[str], field: str, low: float | None = None, high: float | None = None
) -> pl.DataFrame:
    """Returns the mean of a field and its 95 % interval, a row per combination of keys.

    The columns are the keys, `value`, `low` and `high`. Rows whose field is null are left out. Combinations keep the
    order in which they first appear. The interval is cut to the range `low` to `high` of the quantity; that of a single
    value is the value.

    >>> frame = pl.DataFrame({"n": [4, 4, 4, 8], "seed": [0, 1, 2, 0], "accuracy": [97.0, 98.0, 99.0, 96.0]})
    >>> for row in over_seeds(frame, ["n"], "accuracy", high=100.0).rows():
    ...     print("{}: {:.2f}, {:.2f} to {:.2f}".format(*row))
    4: 98.00, 95.52 to 100.00
    8: 96.00, 96.00 to 96.00
    """
    groups = frame.drop_nulls(field).group_by(keys, maintain_order=True).agg(field)
    values = groups[field].to_list()
    means = np.array([np.mean(seeds) for seeds in values], np.float64)
    halves = np.array([half_width(seeds) or 0.0 for seeds in values], np.float64)
    ends = pl.DataFrame({"value": means, "low": means - halves, "high": means + halves})
    return groups.select(keys).hstack(ends.with_columns(pl.col("low", "high").clip(low, high)))


Cell = tuple[str, str, int]
"""Part of a task, normalizer and length."""


def over_sets(
    right: Mapping[Cell, Bool[np.ndarray, " sets"]], baseline: str, tested: Collection[Cell] | None = None
) -> dict[Cell, dict[str, float | None]]:
    """Returns for each cell Wilson's 95 % interval of the percent right, and p against the baseline on the same sets.

    `low` and `high` are the ends of the interval; `p` is of McNemar's exact test, corrected by Holm for all `tested`
    cells, by default all, and None for others and without another normalizer to compare with. Both take the trained
    models as given.
    """
    family = right.keys() if tested is None else tested
    p_values = [
        mcnemar(answers, right.get((part, baseline, n))) if name != baseline and (part, name, n) in family else None
        for (part, name, n), answers in right.items()
    ]
    tests: dict[Cell, dict[str, float | None]] = {}
    for (cell, answers), p in zip(right.items(), corrected(p_values)):
        low, high = scipy.stats.binomtest(int(answers.sum()), answers.size).proportion_ci(method="wilson")
        tests[cell] = {"low": 100 * float(low), "high": 100 * float(high), "p": p}
    return tests


def mcnemar(right: Bool[np.ndarray, " sets"], reference: Bool[np.ndarray, " sets"] | None) -> float | None:
    """Returns the two-sided p of McNemar's exact test: whether one is right more often where only one of two is.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions", 1947.

    >>> mcnemar(np.array([True] * 6), np.array([False] * 6))
    0.03125
    """
    if reference is None:
        return None
    ours, theirs = int((right & ~reference).sum()), int((reference & ~right).sum())
    return float(scipy.stats.binomtest(ours, ours + theirs).pvalue) if ours + theirs else 1.0
