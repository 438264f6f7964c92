"""Instances of every algorithm, drawn once for all tests of a process."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from studies.clrs_text.algorithms import ALGORITHMS

COUNT = 60
LENGTH, ROOM = 9, 12


@functools.cache
def drawn(algorithm, length=LENGTH, room=ROOM, decimals=3):
    """Inputs and outputs of some instances, in room for more."""
    one, n = ALGORITHMS[algorithm], jnp.int32(length)

    def instance(key):
        inputs = one.draw(key, n, room, decimals)
        return inputs, one.solve(inputs, n, decimals)

    made = jax.jit(jax.vmap(instance))(jax.random.split(jax.random.key(length), COUNT))
    return jax.tree.map(np.asarray, made)


def without_room(fields, length, index):
    """The numbers of one instance."""
    one = {name: values[index] for name, values in fields.items()}
    return {name: np.asarray(values[:length] if values.ndim else values) for name, values in one.items()}
