"""What the key of max retrieval can tell apart: the logit of an item by its ρ and class."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from softmax_jax.measures.evaluation import task_of
from softmax_jax.tasks.max_retrieval import CLASSES
from softmax_jax.tasks.task import Task
from softmax_jax.training.trainer import Parameters, build_model


class Resolution(NamedTuple):
    """The logit of an item by its ρ and class, alone with a fixed query; every field but the grids by seed."""

    rho: Float[np.ndarray, " points"]
    logits: Float[np.ndarray, "seeds classes points"]
    near_rho: Float[np.ndarray, " points"]
    near_logits: Float[np.ndarray, "seeds classes points"]
    slope: Float[np.ndarray, " seeds"]
    """Growth of the logit per unit of ρ at ρ = 1, mean over classes: softmax at β = 1 tells apart about 1/slope."""
    offset: Float[np.ndarray, " seeds"]
    """Standard deviation over classes of the logit at ρ = 1, in nats: the key tells apart about offset/slope in ρ."""
    bias: Float[np.ndarray, "seeds classes"]
    """What the key adds to ρ for items of a class, less the mean of all: the logit at ρ = 1 over the slope."""


def resolution(
    parameters: Parameters, *, query: float = 0.5, points: int = 101, task: Task | None = None
) -> Resolution:
    """Logits of single items over a grid of ρ, once over its whole range and once where classes begin to differ."""
    structure, _ = build_model(task_of(parameters, task))
    queries = jnp.full((1, 1), query, jnp.float32)

    def logits_at(of_seed: Parameters, rho: Float[Array, ""]) -> Float[Array, " classes"]:
        items = jnp.concatenate([jnp.full((CLASSES, 1), rho, jnp.float32), jnp.eye(CLASSES, dtype=jnp.float32)], 1)
        return nnx.merge(structure, of_seed).encode(items[None], queries).logits[0]

    @jax.jit
    def on_grid(rho: Float[Array, " points"]) -> Float[Array, "seeds classes points"]:
        return jax.vmap(lambda of_seed: jax.vmap(lambda x: logits_at(of_seed, x), out_axes=1)(rho))(parameters)

    @jax.jit
    def at_end() -> tuple[Float[Array, "seeds classes"], Float[Array, "seeds classes"]]:
        def of_one(of_seed: Parameters) -> tuple[Float[Array, " classes"], Float[Array, " classes"]]:
            logits, derivative = jax.vjp(lambda rho: logits_at(of_seed, rho), jnp.ones((), jnp.float32))
            return logits, jax.vmap(derivative)(jnp.eye(CLASSES, dtype=jnp.float32))[0]

        return jax.vmap(of_one)(parameters)

    end, slopes = (np.asarray(values, np.float64) for values in at_end())
    slope, offset = slopes.mean(1), end.std(1)
    width = float(np.clip(8 * np.median(offset / np.abs(slope)), 1e-5, 1.0))
    whole, near = np.linspace(0, 1, points), np.linspace(1 - width, 1, points)
    logits, near_logits = (np.asarray(on_grid(jnp.asarray(grid, jnp.float32))) for grid in (whole, near))
    bias = (end - end.mean(1, keepdims=True)) / slope[:, None]
    return Resolution(whole, logits, near, near_logits, slope, offset, bias)
