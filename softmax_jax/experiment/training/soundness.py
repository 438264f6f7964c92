"""Refuses a task that could be trained and then not be judged: one line before the first step, not after the last."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.config import Config
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer as normalizer_named
from softmax_jax.normalizers.row import weigh
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.sites import sites

PLAIN = Config.normalizer
"""The normalizer of a run that names none."""


def require_sound(task: Task, normalizer: str) -> None:
    """Checks the batch and the attention of a task. The model is traced, not run.

    Raises Refusal for a training batch without arrays, for a task whose training lengths are not known, for a model
    without a softmax, and for a model that does not use the normalizer that it is given.
    """
    batch = jax.eval_shape(task.training_batch, jnp.int32(0), jnp.int32(0))
    if not jax.tree.leaves(batch):
        raise Refusal(f"the task {task.name} has a training_batch without arrays: return sets and their answers")
    _ = task.longest  # or raises
    under_softmax = _scores(task, PLAIN)
    if normalizer == PLAIN:
        try:
            sites(under_softmax)(batch)
        except Refusal as error:
            raise Refusal(f"the model of the task {task.name} has no attention to measure: {error}") from None
        return
    same_model = _program(_scores(task, normalizer), batch) == _program(under_softmax, batch)
    if same_model and not _weighs_as_softmax(normalizer_named(normalizer)):
        raise Refusal(
            f"the model of the task {task.name} is the same under {normalizer} as under {PLAIN}: let `build` give "
            f"its normalizer to the attention of the model, or train under {PLAIN} and swap when you evaluate"
        )


def _scores(task: Task, normalizer: str) -> Callable[[Any], Array]:
    """Returns the function from a batch to the scores of a new model."""

    def scores(batch: Any) -> Array:
        return task.scores(task.build(normalizer, nnx.Rngs(0)), batch, None)

    return scores


def _weighs_as_softmax(normalizer: Normalizer) -> bool:
    """Says whether the weights of a normalizer are those of softmax, on rows of both high and low entropy."""
    rows = jnp.outer(jnp.array([0.01, 1.0], jnp.float32), jnp.arange(-11, 12, dtype=jnp.float32))
    return bool(jnp.allclose(weigh(normalizer, rows), jax.nn.softmax(rows), atol=1e-5))


def _program(function: Callable[[Any], Any], argument: Any) -> str:
    """Returns the text of a function's program."""
    return str(jax.make_jaxpr(function)(argument))
