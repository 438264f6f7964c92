"""How β must grow: the β at which the largest weight is one half, and how fast that and other β grow with n."""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float

from softmax_jax.tasks.priorities import NEEDLE, QUANTILES

BETAS = tuple(2.0 ** (power / 2) for power in range(-24, 33))
"""From 1/4,096, for models, whose logits are steep, to 65,536, for a perfect key; β½ is found between them."""
RULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda n: 1.0,
    "(log n)^½": lambda n: math.log(n) ** 0.5,
    "log n": math.log,
    "(log n)²": lambda n: math.log(n) ** 2,
    "n^¼": lambda n: n**0.25,
    "n^½": lambda n: n**0.5,
    "n": float,
}
"""How β grows by the rules that are in use, and by those of extreme values."""
Row = tuple[str, int, int, float, float]
"""A priority, a seed (-1 for the perfect key), n, β½, and the β of the least loss, NaN where there is none."""
COLUMNS = {"priority": pl.String, "seed": pl.Int64, "n": pl.Int64, "half": pl.Float64, "best": pl.Float64}
PERFECT = -1


def half_weight(betas: Sequence[float], weights: Sequence[float]) -> float:
    """The β at which the mean largest weight, which rises with β, is one half; NaN beyond these β.

    Linear in log β and in the log odds of the weight between two of them.

    >>> half_weight((1.0, 4.0), (0.25, 0.75))
    2.0
    """
    odds = [math.log(max(weight, 1e-9) / max(1 - weight, 1e-9)) for weight in weights]
    if not odds[0] <= 0 <= odds[-1]:
        return math.nan
    return float(np.exp(np.interp(0.0, odds, np.log(betas))))


def least_loss(betas: Sequence[float], losses: Sequence[float]) -> float:
    """The β of the least loss, by the parabola in log β through the least and its neighbours; NaN at either end.

    >>> least_loss((0.5, 1.0, 2.0), (2.0, 1.0, 2.0))
    1.0
    """
    at = int(np.argmin(losses))
    if at in (0, len(losses) - 1):
        return math.nan
    below, least, above = losses[at - 1 : at + 2]
    step = math.log(betas[at + 1] / betas[at])
    return betas[at] * math.exp(step * (below - above) / 2 / (below - 2 * least + above))


def of_perfect_key(priority: str, lengths: Sequence[int], sets: int) -> list[Row]:
    """β½ of logits that are ρ itself, by length."""
    rows = []
    for n in lengths:
        weights = np.mean([largest_weights(priority, n, index) for index in range(sets)], 0)
        rows.append((priority, PERFECT, n, half_weight(BETAS, weights.tolist()), math.nan))
    return rows


def largest_weights(priority: str, n: int, index: int) -> Float[np.ndarray, " betas"]:
    """The largest weight of one row of n draws of ρ, for each of `BETAS`."""
    draws = np.random.default_rng((n, index)).random(n)
    if priority == NEEDLE:
        draws[0] = 1.0
    with jax.enable_x64(True):
        rho = np.asarray(QUANTILES[priority](jnp.asarray(draws)), np.float64)
    gaps = rho.max() - rho
    return np.array([1 / np.exp(-beta * gaps).sum() for beta in BETAS])


def growth(frame: pl.DataFrame, field: str, shortest: int) -> pl.DataFrame:
    """How a β grows from `shortest` to the longest: `power`, its slope in log n, and `log_power`, in log log n.

    Least squares over the lengths, for each priority and seed; null where a β is missing.
    """
    rows = []
    long = frame.filter(pl.col("n") >= shortest)
    for (priority, seed), of_seed in long.group_by("priority", "seed", maintain_order=True):
        log_beta, log_n = np.log(of_seed[field].to_numpy()), np.log(of_seed["n"].to_numpy())
        missing = np.isnan(log_beta).any() or len(log_n) < 2
        slopes = [None if missing else float(np.polyfit(x, log_beta, 1)[0]) for x in (log_n, np.log(log_n))]
        rows.append((priority, seed, *slopes))
    columns = {"priority": pl.String, "seed": pl.Int64, "power": pl.Float64, "log_power": pl.Float64}
    return pl.DataFrame(rows, columns, orient="row")


def off_by(frame: pl.DataFrame, field: str, shortest: int) -> pl.DataFrame:
    """By which factor each rule misses the β of the longest length if it is right at `shortest`: rule over β.

    Above 1 it is too sharp, below 1 too soft.
    """
    longest = max(frame["n"].to_list())
    ends = frame.filter(pl.col("n").is_in([shortest, longest])).pivot("n", index=["priority", "seed"], values=field)
    grown = ends[str(longest)] / ends[str(shortest)]
    rules = {name: rule(longest) / rule(shortest) for name, rule in RULES.items()}
    return ends.select("priority", "seed").with_columns(**{name: factor / grown for name, factor in rules.items()})
