r"""The best that any model can answer where rounded products cannot tell the largest items apart.

A product that reads ρ rounded to a spacing δ cannot tell items of one step apart. The answer is then the class of one
of those that share the highest step, and the best guess is the commonest class among them:

$$\text{ceiling} = \operatorname{mean}_{\text{sets}} \; \max_c \frac{\#\{i \text{ at the top}: \kappa_i = c\}}{\#\{i
\text{ at the top}\}}.$$

It is computed on the very sets that models are tested on, with nothing trained and nothing fitted.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float, Key

from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.normalizers.arithmetic import reaches


class Ties(NamedTuple):
    """The ties that rounding makes in each set."""

    chance: Float[np.ndarray, "*sets"]
    """The probability that the best guess is right: the share of the commonest class among the items of largest ρ."""
    tied: Bool[np.ndarray, "*sets"]
    """Whether there is more than one such item."""


def ties(task: MaxRetrieval, precision: str, *, seeds: Sequence[int], n: int, sets: int) -> Ties:
    """Returns the ties of the sets that an evaluation draws, in its order: arrays over seeds and sets."""
    keys = set_keys(seeds, n, sets)
    flat = _ties(task, precision, n, keys.ravel())
    return Ties(*(np.asarray(values).reshape(keys.shape) for values in flat))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _ties(
    task: MaxRetrieval, precision: str, n: int, keys: Key[Array, " sets"]
) -> tuple[Float[Array, " sets"], Bool[Array, " sets"]]:
    def count_ties(key: Key[Array, ""]) -> tuple[Array, Array]:
        items = task.test_batch(key, n, 1).items[0]
        rho = items[:, 0] if precision == products.FLOAT32 else products.rounded_to(precision, items[:, 0])
        at_top = jnp.where(reaches(rho, rho.max())[:, None], items[:, 1:], 0).sum(0)
        return at_top.max() / at_top.sum(), at_top.sum() > 1

    return jax.lax.map(count_ties, keys, batch_size=task.at_once(n))


def ceilings(
    task: MaxRetrieval, precisions: Sequence[str], *, seeds: Sequence[int], lengths: Sequence[int], sets: int
) -> pl.DataFrame:
    """Returns by precision, n and seed, in percent of sets, the `ceiling`, its `deviation` by chance, and those `tied`.

    The best guesser of all is right in each set by chance, so it may exceed the ceiling by a few deviations.
    """
    rows = []
    for precision in precisions:
        for n in lengths:
            chance, tied = ties(task, precision, seeds=seeds, n=n, sets=sets)
            deviation = 100 * np.sqrt((chance * (1 - chance)).sum(1)) / sets
            by_seed = zip(seeds, 100 * chance.mean(1), deviation, 100 * tied.mean(1))
            rows += [(precision, n, *map(float, seed_values)) for seed_values in by_seed]
    columns = {"precision": pl.String, "n": pl.Int64, "seed": pl.Int64}
    columns |= dict.fromkeys(("ceiling", "deviation", "tied"), pl.Float64)
    return pl.DataFrame(rows, columns, orient="row")
