"""Random models of two seeds, which the measures look at."""

import functools

import jax
import numpy as np
from flax import nnx

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.run import build_model

SEEDS = (4, 5)
TASK = MaxRetrieval(width=8)


@functools.cache
def parameters_of(task=TASK, trained_under="softmax"):
    """Parameters for each of `SEEDS`, larger than at the start of training, so that weights differ."""
    keys = jax.random.split(jax.random.key(0), len(SEEDS))
    return jax.tree.map(lambda leaf: 3 * leaf, jax.vmap(build_model(task, trained_under)[1])(keys))


def blank():
    """Parameters of `TASK` that are 0, for what looks at their shapes alone: no program is compiled for them."""
    shapes = jax.eval_shape(jax.vmap(build_model(TASK, "softmax")[1]), jax.random.split(jax.random.key(0), len(SEEDS)))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def model_of(index, task: Task = TASK):
    """The model of one of `SEEDS`."""
    return nnx.merge(build_model(task)[0], jax.tree.map(lambda leaf: leaf[index], parameters_of(task)))
