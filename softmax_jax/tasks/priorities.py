r"""How the ρ of the items of max retrieval are distributed.

Each distribution is its quantile function, which rises, so that an item that is the largest of its set by the uniform
draw behind it is so by its ρ. A long row is a sample of logits, and how near its two largest lie is a matter of the
upper tail alone: the largest of n are apart by about 1/n if ρ is uniform, n^(-1/k) if it is Beta(1, k), 1/√(log n) if
it is Gaussian, and by 1 whatever n is if it is exponential. A needle leads all others by a fixed distance.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNIFORM = "uniform"
NEEDLE = "needle"
LEAD = 0.2
"""How far a needle lies above the highest that another item can be."""


def beta_quantile(k: int) -> Callable[[Array], Array]:
    """That of Beta(1, k), whose density is k·(1 - ρ)^(k - 1)."""
    return lambda u: 1 - (1 - u) ** (1 / k)


def needle_quantile(u: Float[Array, "*items"]) -> Float[Array, "*items"]:
    """Uniform, and beyond the highest of these for a draw of 1."""
    return jnp.where(u < 1, u, 1 + LEAD)


def gaussian_quantile(u: Float[Array, "*items"]) -> Float[Array, "*items"]:
    """Standard normal; a draw of 0 counts as half the least one above it."""
    # By symmetry from the lower tail, where float32 has digits to spare.
    return -jax.scipy.special.ndtri(jnp.minimum(1 - u, 1 - 2.0**-24))


QUANTILES: Mapping[str, Callable[[Array], Array]] = {
    UNIFORM: lambda u: u,
    "beta_2": beta_quantile(2),
    "beta_4": beta_quantile(4),
    "gaussian": gaussian_quantile,
    "exponential": lambda u: -jnp.log1p(-u),
    NEEDLE: needle_quantile,
}
"""By name, from a uniform draw to ρ."""
