"""The model of max retrieval: one attention head between two small perceptrons, and a table of its hidden items.

Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, section 3 and appendix.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.row import visible_values, weigh

CLASSES = 10
FEATURES = 1 + CLASSES
BLOCK = 1024
"""Items of a long set that are drawn from one key, and encoded at once."""
LONGEST_WHOLE = 2**14
"""The model encodes longer sets block by block and keeps no hidden items."""


class Batch(NamedTuple):
    """Sets of items. Features of masked items are 0; `answer` is the class of the largest visible item."""

    items: Float[Array, "sets items features"]
    query: Float[Array, "sets 1"]
    mask: Bool[Array, "sets items"]
    answer: Int[Array, " sets"]


class Attended(NamedTuple):
    """The model's scores, with the attention behind them."""

    scores: Float[Array, "sets classes"]
    logits: Float[Array, "sets items"]
    weights: Float[Array, "sets items"]


class MaxRetrievalModel(nnx.Module):
    r"""One attention head between two small perceptrons; its parameters do not depend on the normalizer.

    Items and query each pass Dense-gelu-Dense-gelu. One head attends from the query to the items with logits
    $z_i = q^\top k_i / \sqrt{\text{width}}$, and Dense-gelu-Dense reads the attended value into class scores.
    No residual, no norm, no positions.

    With one query per set, keys and values need never be formed for each item:
    $q^\top (W_k^\top h_i + b_k) = (W_k q)^\top h_i + q^\top b_k$, and the weighted sum of values is the value of
    the weighted sum, so both projections act once a set.

    Source: arXiv 2410.01104, the max retrieval model.

    >>> from softmax_jax.experiment.tasks.max_retrieval import sample
    >>> model = MaxRetrievalModel(width=8, rngs=nnx.Rngs(0))
    >>> batch = sample(jax.random.key(0), sets=3, items=5)
    >>> model(batch).weights.sum(1).round(3)
    Array([1., 1., 1.], dtype=float32)
    """

    def __init__(
        self,
        width: int = 128,
        normalizer: Normalizer = Normalizer(softmax),  # noqa: B008
        precisions: Sequence[str] = (rounded_products.FLOAT32,) * 3,
        *,
        rngs: nnx.Rngs,
    ):
        # Bound to a function, the numbers of the normalizer are no state of the module, even if they are arrays.
        self.normalize = functools.partial(_normalize, normalizer)
        inputs, dense, over_items = precisions
        self.by_kernel = functools.partial(rounded_products.product, dense)
        self.over_items = functools.partial(rounded_products.product, over_items)
        layer = functools.partial(rounded_products.layer, rngs=rngs)
        self.item_in = layer(inputs, FEATURES, width)
        self.item_out = layer(dense, width, width)
        self.query_in = layer(inputs, 1, width)
        self.query_out = layer(dense, width, width)
        self.attention_query = layer(dense, width, width)
        self.attention_key = layer(dense, width, width)
        self.attention_value = layer(dense, width, width)
        self.attention_out = layer(dense, width, width)
        self.read_in = layer(dense, width, width)
        self.read_out = layer(dense, width, CLASSES)

    def hidden(self, items: Float[Array, "sets items features"]) -> Float[Array, "sets items width"]:
        """Encodes each item."""
        sets, count, _ = items.shape
        # A Dense layer on flat items is faster forward and, on CPUs, twice as fast backward.
        flat = nnx.gelu(self.item_in(items.reshape(sets * count, -1)))
        return nnx.gelu(self.item_out(flat)).reshape(sets, count, -1)

    def logits(
        self, hidden: Float[Array, "sets items width"], query: Float[Array, "sets 1"]
    ) -> Float[Array, "sets items"]:
        """Returns the attention logits of hidden items."""
        q = self.attention_query(nnx.gelu(self.query_out(nnx.gelu(self.query_in(query)))))
        kernel, bias = self.attention_key.kernel[...], self.attention_key.bias[...]  # pyright: ignore[reportOptionalSubscript]
        folded, shift = self.by_kernel(rounded_products.LAYER, q, kernel.T), self.by_kernel("...i,i->...", q, bias)
        logits = self.over_items("snw,sw->sn", hidden, folded) + shift[:, None]
        return logits / kernel.shape[1] ** 0.5

    def pool(
        self, weights: Float[Array, "sets items"], hidden: Float[Array, "sets items width"]
    ) -> Float[Array, "sets width"]:
        """Returns the sums of the hidden items under attention weights."""
        return self.over_items("sn,snw->sw", weights, hidden)

    def read(self, pooled: Float[Array, "sets width"], total: Float[Array, " sets"]) -> Float[Array, "sets classes"]:
        """Returns class scores from weighted sums of hidden items and the sums of their weights."""
        kernel, bias = self.attention_value.kernel[...], self.attention_value.bias[...]  # pyright: ignore[reportOptionalSubscript]
        value = self.by_kernel(rounded_products.LAYER, pooled, kernel)
        value += self.by_kernel(rounded_products.LAYER, total[..., None], bias[None, :])
        return self.read_out(nnx.gelu(self.read_in(self.attention_out(value))))

    def __call__(self, batch: Batch, normalizer: Normalizer | None = None) -> Attended:
        """Returns class scores with the logits and weights of the attention, masked items at 0 in both.

        A normalizer given here replaces the model's own, on which no parameter depends.
        """
        normalize = self.normalize if normalizer is None else functools.partial(weigh, normalizer)
        if batch.items.shape[1] <= LONGEST_WHOLE:
            hidden = self.hidden(batch.items)
            logits = self.logits(hidden, batch.query)
            weights = normalize(logits, where=batch.mask)
            pooled = self.pool(weights, hidden)
        else:  # hidden items are not kept, but encoded twice
            logits = self._long_logits(batch)
            weights = normalize(logits, where=batch.mask)
            pooled = self._long_pool(weights, batch.items)
        return Attended(self.read(pooled, weights.sum(-1)), visible_values(logits, batch.mask), weights)

    def _long_logits(self, batch: Batch) -> Float[Array, "sets items"]:
        """Returns the logits, encoding one block of items at a time."""
        logits = jax.lax.map(lambda items: self.logits(self.hidden(items), batch.query), _blocks(batch.items))
        return jnp.moveaxis(logits, 0, 1).reshape(len(batch.items), -1)[:, : batch.items.shape[1]]

    def _long_pool(
        self, weights: Float[Array, "sets items"], items: Float[Array, "sets items features"]
    ) -> Float[Array, "sets width"]:
        """Returns the sums of the hidden items under attention weights, encoding one block of items at a time."""
        sums = jax.lax.map(lambda block: self.pool(block[0], self.hidden(block[1])), (_blocks(weights), _blocks(items)))
        return sums.sum(0)


class KnownItems(MaxRetrievalModel):
    """The same model for many test sets: it looks hidden items up in a table of all that rounding tells apart.

    An item is ρ and its class, and a first product in bfloat16 rounds ρ. The ρ that are drawn are steps of 2⁻²³ from 0
    to 1. Rounding leaves 2,946 of them and so 29,460 items, where an evaluation draws millions for each seed. Hidden
    items are the same to the bit. The default evaluation takes a third of the time (two AVX2 cores, November 2026).

    >>> model = MaxRetrievalModel(width=8, precisions=["bfloat16"] * 3, rngs=nnx.Rngs(0))
    >>> KnownItems(model).hidden(every_item()[None, :3]).shape
    (1, 3, 8)
    """

    def __init__(self, model: MaxRetrievalModel):
        for name, value in vars(model).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        table = model.hidden(every_item()[None])[0]
        if model.over_items.args == ("bfloat16",):
            # Both products that read hidden items round them first, so half the bytes are enough. As whole numbers,
            # since XLA would keep bfloat16 itself in float32.
            table = jax.lax.bitcast_convert_type(table.astype("bfloat16"), jnp.uint16)
        self.table = nnx.Variable(table)

    def hidden(self, items: Float[Array, "sets items features"]) -> Float[Array, "sets items width"]:
        """Looks the encoding of each item up; a masked item has that of the first in the table."""
        entries = self.table[...].at[entry_of(items)].get(mode="promise_in_bounds")
        if entries.dtype == jnp.uint16:
            entries = jax.lax.bitcast_convert_type(entries, "bfloat16")
        return entries.astype(items.dtype)


LEAST, ONE = (int(np.asarray(rho, jnp.bfloat16).view(np.uint16)) for rho in (2.0**-23, 1.0))
"""The least ρ above 0 that is drawn, and the largest, as the bits of a bfloat16: these count upwards with ρ."""
ENTRIES = (ONE - LEAST + 2) * CLASSES


def entry_of(items: Float[Array, "*items features"]) -> Int[Array, "*items"]:
    """Returns the place of each item in the table of `KnownItems`; a masked item, whose features are 0, has place 0.

    >>> entry_of(every_item()).tolist() == list(range(ENTRIES))
    True
    """
    bits = jax.lax.bitcast_convert_type(items[..., 0].astype(jnp.bfloat16), jnp.uint16).astype(jnp.int32)
    kappa = sum((k * items[..., 1 + k] for k in range(1, CLASSES)), jnp.zeros((), items.dtype))  # faster than argmax
    return jnp.maximum(bits - LEAST + 1, 0) * CLASSES + kappa.astype(jnp.int32)


def every_item() -> Float[Array, "entries features"]:
    """Returns the items that differ after rounding, in the order of `entry_of`: ρ is 0, or from 2⁻²³ to 1."""
    bits = jnp.arange(LEAST, ONE + 1).astype(jnp.uint16)
    above = jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)
    rho, classes = jnp.concatenate([jnp.zeros(1, jnp.float32), above]), jnp.eye(CLASSES, dtype=jnp.float32)
    return jnp.concatenate([jnp.repeat(rho, CLASSES)[:, None], jnp.tile(classes, (len(rho), 1))], 1)


def _blocks(array: Float[Array, "sets items *rest"]) -> Float[Array, "blocks sets block *rest"]:
    """Returns the blocks of items one after the other, the last filled up with zeros."""
    sets, items, *rest = array.shape
    filled = jnp.pad(array, [(0, 0), (0, -items % BLOCK), *[(0, 0)] * len(rest)])
    return jnp.moveaxis(filled.reshape(sets, -1, BLOCK, *rest), 1, 0)


def _normalize(normalizer: Normalizer, logits: Array, where: Array) -> Array:
    return weigh(normalizer, logits, where=where)
