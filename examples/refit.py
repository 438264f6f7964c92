"""Refits the adaptive temperature to a head of stock layers of Flax, and tests it on longer sets.

    python -m examples.refit

Trains on sets of 16 items, refits on up to 256, tests on 1,024: one minute on 2 CPU cores. `search` finds the best
temperature of each row by the user's own loss, `fit` draws the polynomial through them; `temperature.json` is the fit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

import softmax_jax as sj
from softmax_jax.experiment.tasks.max_retrieval import sample
from softmax_jax.temperature import Rows, fit, search


class Finder(nnx.Module):
    """One head of stock attention that finds the class of the largest item."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(11, 64, rngs=rngs)
        self.query = nnx.Param(jnp.ones((1, 1, 64)))
        self.attention = nnx.MultiHeadAttention(1, 64, decode=False, rngs=rngs)
        self.classes = nnx.Linear(64, 10, rngs=rngs)

    def inputs(self, items: Array) -> tuple[Array, Array]:
        """Returns the query and the embedded items."""
        return jnp.broadcast_to(self.query[...], (len(items), 1, 64)), nnx.gelu(self.embed(items))

    def __call__(self, items: Array) -> Array:
        return self.classes(self.attention(*self.inputs(items))[:, 0])


def cross_entropy(scores: Array, answer: Array) -> Array:
    """Returns the loss of each set in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(scores, answer)


@nnx.jit
def train(model: Finder, optimizer: nnx.Optimizer, key: Array) -> None:
    """Takes one step on 128 sets of 16 items."""
    batch = sample(key, 128, 16)
    optimizer.update(model, nnx.grad(lambda model: cross_entropy(model(batch.items), batch.answer).mean())(model))


model = Finder(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
for step in range(600):
    train(model, optimizer, jax.random.key(step))


def rows(key: Array, sets: int, items: int) -> Rows:
    """Searches the best temperature of the row of each set."""
    batch, head = sample(key, sets, items), model.attention
    query, hidden = model.inputs(batch.items)
    logits = jnp.einsum("sqhd,snhd->sn", head.query(query), head.key(hidden)) / 8  # the square root of the head's size

    def loss(attended: Array) -> Array:
        return cross_entropy(model.classes(head.out(attended[:, None])), batch.answer)

    found = search(logits, head.value(hidden)[:, :, 0], loss)
    return jax.tree.map(lambda column: np.asarray(column)[None], found)  # the axis of seeds, of which there is one


lengths = (16, 64, 256)
fitted, held_out = ({n: rows(jax.random.key(first + n), 1024, n) for n in lengths} for first in (1000, 2000))
found = fit(fitted, held_out, seeds=[0], degree=2)
found.save("temperature.json")


def loss(normalizer: str | sj.Normalizer) -> float:
    """Returns the mean loss on 512 sets of 1,024 items."""
    model.attention.attention_fn = sj.attention_fn(normalizer)
    batch = sample(jax.random.key(3000), 512, 1024)
    return float(cross_entropy(model(batch.items), batch.answer).mean())


names = ("softmax", "adaptive", "adaptive(fit=temperature.json)")
before, published, refitted = map(loss, names)
print(before, published, refitted)  # nats; a guess costs log 10 = 2.3
