"""Max retrieval: name the class of the largest item of a set.

An item is [ρ, one-hot(κ)] with ρ ~ U(0, 1), or as `priorities` has it, and κ uniform over 10 classes; the query is one
irrelevant number from U(0, 1); the answer is the κ of the item with the largest ρ. One attention head must find that
item, so its weights must stay sharp as the set grows.

Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, section 3 and appendix.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.task import SetsPerBatch, Task, data_key, option
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer as normalizer_named
from softmax_jax.normalizers.row import visible_values, weigh
from softmax_jax.refusal import Refusal

CLASSES = 10
FEATURES = 1 + CLASSES
BLOCK = 1024
"""Items drawn from one key. Longer sets are drawn block by block, so their items never depend on the memory used."""
LONGEST_WHOLE = 2**14
"""The model encodes longer sets block by block and keeps no hidden items."""
ITEMS_AT_ONCE = 2**14
"""Items of test sets to read at once: enough to fill the cores."""
UNIFORM, NEEDLE = "uniform", "needle"
LEAD = 0.2
"""How far a needle lies above the highest that another item can be."""


def beta_quantile(k: int) -> Callable[[Array], Array]:
    """Returns the quantile function of Beta(1, k), whose density is k·(1 - ρ)^(k - 1)."""
    return lambda u: 1 - (1 - u) ** (1 / k)


def needle_quantile(u: Float[Array, "*items"]) -> Float[Array, "*items"]:
    """Returns a uniform draw as it is, and a draw of 1 as a needle, beyond the highest of the others."""
    return jnp.where(u < 1, u, 1 + LEAD)


def gaussian_quantile(u: Float[Array, "*items"]) -> Float[Array, "*items"]:
    """Returns the quantile function of the standard normal; a draw of 0 counts as half the least one above it."""
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
"""The distributions of ρ by name, each as its quantile function, from a uniform draw to ρ.

A quantile function rises, so the item with the largest draw has the largest ρ. How near the two largest of n items lie
depends on the upper tail: they are about 1/n apart if ρ is uniform, n^(-1/k) if it is Beta(1, k), 1/√(log n) if it is
Gaussian, and 1 for every n if it is exponential. A needle leads all others by a fixed distance.
"""


class Batch(NamedTuple):
    """Sets of items. Features of masked items are 0; `answer` is the class of the largest visible item."""

    items: Float[Array, "sets items features"]
    query: Float[Array, "sets 1"]
    mask: Bool[Array, "sets items"]
    answer: Int[Array, " sets"]


def sample(
    key: Key[Array, ""],
    sets: int,
    items: int,
    lengths: Int[Array, "#sets"] | None = None,
    priority: str = UNIFORM,
) -> Batch:
    """Draws sets of up to `items` items, a pure function of the key.

    Set i keeps its first `lengths[i]` items visible, all of them by default; the rest are padding. `priority` names the
    distribution of ρ.

    >>> batch = sample(jax.random.key(0), sets=2, items=4, lengths=jnp.array([4, 1]))
    >>> batch.mask.tolist()
    [[True, True, True, True], [True, False, False, False]]
    """
    item_key, query_key = jax.random.split(key)

    def draw_block(index: Array) -> tuple[Array, Array]:
        rho_key, kappa_key = jax.random.split(jax.random.fold_in(item_key, index))
        shape = (sets, min(items, BLOCK))
        return (
            jax.random.uniform(rho_key, shape, jnp.float32),
            jax.random.randint(kappa_key, shape, 0, CLASSES, jnp.int32),
        )

    # All blocks in one operation: compiling them one after the other would cost more than running them.
    drawn = jax.vmap(draw_block, out_axes=1)(jnp.arange(-(-items // BLOCK), dtype=jnp.int32))
    rho, kappa = (blocks.reshape(sets, -1)[:, :items] for blocks in drawn)
    if priority == NEEDLE:
        rho = rho.at[:, 0].set(1.0)
    return _batch(rho, kappa, _visible(lengths, sets, items), query_key, priority)


def sample_near_ties(
    key: Key[Array, ""], sets: int, items: int, nearest_of: int, lengths: Int[Array, "#sets"] | None = None
) -> Batch:
    """Draws sets as `sample` does, each `nearest_of` times, and keeps of each the draw that is hardest to tell apart.

    That is the one whose two largest visible ρ are nearest to each other. Classes and queries stay uniform.

    >>> ordinary, hard = (sample_near_ties(jax.random.key(0), 100, 16, count) for count in (1, 64))
    >>> gap = lambda batch: -jnp.diff(jax.lax.top_k(batch.items[..., 0], 2)[0]).mean()
    >>> bool(gap(hard) < gap(ordinary) / 30)
    True
    """
    item_key, query_key = jax.random.split(key)
    rho_key, kappa_key = jax.random.split(item_key)
    mask = _visible(lengths, sets, items)
    rho = jax.random.uniform(rho_key, (sets, nearest_of, items), jnp.float32)
    visible = jnp.where(mask[:, None], rho, -1)
    best = visible.max(-1, keepdims=True)
    second = jnp.where(visible < best, visible, -1).max(-1)  # equal ones have no right answer and are passed over
    nearest = (best[..., 0] - second).argmin(1)
    rho = jnp.take_along_axis(rho, nearest[:, None, None], 1)[:, 0]
    kappa = jax.random.randint(kappa_key, rho.shape, 0, CLASSES, jnp.int32)
    return _batch(rho, kappa, mask, query_key)


def _visible(lengths: Int[Array, "#sets"] | None, sets: int, items: int) -> Bool[Array, "sets items"]:
    """Returns the mask of sets whose first `lengths` items are visible, or all of them."""
    lengths = jnp.full(sets, items, jnp.int32) if lengths is None else lengths
    return jnp.arange(items, dtype=jnp.int32)[None, :] < jnp.broadcast_to(lengths, (sets,))[:, None]


def _batch(
    draws: Float[Array, "sets items"],
    kappa: Int[Array, "sets items"],
    mask: Bool[Array, "sets items"],
    key: Key[Array, ""],
    priority: str = UNIFORM,
) -> Batch:
    """Returns the batch of these items, ρ by its distribution from uniform draws, and queries from the key."""
    largest = jnp.where(mask, draws, -1).argmax(1)[:, None]
    answer = jnp.take_along_axis(kappa, largest, 1)[:, 0]
    query = jax.random.uniform(key, (len(draws), 1), jnp.float32)
    rho = QUANTILES[priority](draws)
    features = jnp.concatenate([rho[..., None], jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
    return Batch(jnp.where(mask[..., None], features, 0), query, mask, answer)


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
        self.by_kernel, self.over_items = (
            functools.partial(rounded_products.product, one) for one in (dense, over_items)
        )
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
        """Returns what the encoder makes of each item."""
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

        Another normalizer takes the place of the model's own, on which no parameter depends.
        """
        normalize = self.normalize if normalizer is None else functools.partial(weigh, normalizer)
        if batch.items.shape[1] <= LONGEST_WHOLE:
            hidden = self.hidden(batch.items)
            logits = self.logits(hidden, batch.query)
            weights = normalize(logits, where=batch.mask)
            pooled = self.pool(weights, hidden)
        else:  # hidden items are not kept, but encoded once more
            logits = self._long_logits(batch)
            weights = normalize(logits, where=batch.mask)
            pooled = self._long_pool(weights, batch.items)
        return Attended(self.read(pooled, weights.sum(-1)), visible_values(logits, batch.mask), weights)

    def _long_logits(self, batch: Batch) -> Float[Array, "sets items"]:
        """Returns the logits, encoding one block of items at a time."""
        of_blocks = jax.lax.map(lambda items: self.logits(self.hidden(items), batch.query), _blocks(batch.items))
        return jnp.moveaxis(of_blocks, 0, 1).reshape(len(batch.items), -1)[:, : batch.items.shape[1]]

    def _long_pool(
        self, weights: Float[Array, "sets items"], items: Float[Array, "sets items features"]
    ) -> Float[Array, "sets width"]:
        """Returns the sums of the hidden items under attention weights, encoding one block of items at a time."""
        of_block = jax.lax.map(
            lambda part: self.pool(part[0], self.hidden(part[1])), (_blocks(weights), _blocks(items))
        )
        return of_block.sum(0)


class KnownItems(MaxRetrievalModel):
    """The same model for many test sets: it looks its hidden items up in a table of all that rounding leaves apart.

    An item is ρ and its class, and a first product in bfloat16 rounds ρ. Of the ρ that are drawn, steps of 2⁻²³ from 0
    to 1, that leaves 2,946 numbers and so 29,460 items, where an evaluation draws millions of a seed. What is looked
    up is the same to the bit. The default evaluation takes a third of the time (two AVX2 cores, November 2026).

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
            # Both products that read hidden items round them first, so half the bytes say the same. As whole numbers,
            # since XLA would keep bfloat16 itself in float32.
            table = jax.lax.bitcast_convert_type(table.astype("bfloat16"), jnp.uint16)
        self.table = nnx.Variable(table)

    def hidden(self, items: Float[Array, "sets items features"]) -> Float[Array, "sets items width"]:
        """Returns what the encoder makes of each item; for a masked one, what it makes of the first in the table."""
        found = self.table[...].at[entry_of(items)].get(mode="promise_in_bounds")
        if found.dtype == jnp.uint16:
            found = jax.lax.bitcast_convert_type(found, "bfloat16")
        return found.astype(items.dtype)


LEAST, ONE = (int(np.asarray(rho, jnp.bfloat16).view(np.uint16)) for rho in (2.0**-23, 1.0))
"""The least ρ above 0 that is drawn, and the largest, as the bits of a bfloat16: these count upwards with ρ."""
ENTRIES = (ONE - LEAST + 2) * CLASSES


def entry_of(items: Float[Array, "*items features"]) -> Int[Array, "*items"]:
    """Returns the place of each item in the table of `KnownItems`; that of a masked one, whose features are 0, is 0.

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


@dataclasses.dataclass(frozen=True)
class MaxRetrieval(Task):
    """The task with its sizes; raises ValueError for sizes that make no task."""

    name: ClassVar[str] = "max_retrieval"
    divides_batches: ClassVar[bool] = True
    shared: ClassVar[tuple[int, ...]] = (256, 1024)

    sets: SetsPerBatch = 128
    """Sets per batch."""
    min_items: int = 5
    """Fewest items of a set. All sets of a batch have the same number, drawn uniformly."""
    max_items: int = 16
    """Most items of a set."""
    steps_per_batch: int = 1
    """Steps that reuse a batch before a new one is drawn."""
    nearest_of: int = 1
    """So many draws are made of each set, and the one kept whose two largest ρ are nearest. 1 keeps all."""
    priority: str = UNIFORM
    """How ρ is distributed: uniform, beta_2, beta_4, gaussian, exponential, or needle, which leads by a fixed lead."""
    width: int = 128
    """Width of every layer."""
    matmul: str = rounded_products.FLOAT32
    """What matrix products round to, forward and backward: float32, tensorfloat32, bfloat16 or float8_e4m3."""
    rounded: str = "all"
    """Which of them: inputs, those that read ρ, class or query; dense, all by a kernel; all, those over items too."""

    def __post_init__(self) -> None:
        rounded_products.check(self.matmul, self.rounded)
        checks.one_of("--priority", self.priority, QUANTILES)
        most = {"sets": 2**20, "min_items": 2**20, "max_items": 2**20, "steps_per_batch": 2**31 - 1}
        for name, bound in (most | {"nearest_of": 2**10, "width": 2**14}).items():
            checks.whole(option(name), getattr(self, name), 1, getattr(MaxRetrieval, name), bound)
        if self.max_items < self.min_items:
            raise Refusal(f"--max-items is {self.max_items}: it must be at least min_items={self.min_items}")
        if self.nearest_of > 1 and self.min_items == 1:
            rule = "sets of one item (--min-items 1) have no tie, so it must be 1"
            raise Refusal(f"--nearest-of is {self.nearest_of}: {rule}")
        if self.nearest_of > 1 and self.priority != UNIFORM:
            raise Refusal(f"--priority is {self.priority}: near ties (--nearest-of) are of uniform ρ alone")

    @property
    def longest(self) -> int:
        """The most items of a set in training."""
        return self.max_items

    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Batch:
        """The batch of a training step of a seed."""
        key = jax.random.fold_in(data_key(seed), step // self.steps_per_batch)
        length_key, set_key = jax.random.split(key)
        length = jax.random.randint(length_key, (1,), self.min_items, self.max_items + 1, jnp.int32)
        if self.nearest_of == 1:
            return sample(set_key, self.sets, self.max_items, length, self.priority)
        return sample_near_ties(set_key, self.sets, self.max_items, self.nearest_of, length)

    def on_visible(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function on the visible items alone: a compiled branch for every length that a batch may have.

        All sets of a training batch have the same length, so nothing visible is cut off. At the paper's lengths
        this leaves two thirds of the work; under vmap every branch would run, so it is for one seed at a time.
        """

        def trim(items: int, parameters: Any, batch: Batch, *rest: Any) -> Any:
            return function(parameters, batch._replace(items=batch.items[:, :items], mask=batch.mask[:, :items]), *rest)

        branches = [functools.partial(trim, items) for items in range(self.min_items, self.max_items + 1)]

        def trimmed(parameters: Any, batch: Batch, *rest: Any) -> Any:
            return jax.lax.switch(batch.mask[0].sum() - self.min_items, branches, parameters, batch, *rest)

        return trimmed

    def build(self, normalizer: str, rngs: nnx.Rngs) -> MaxRetrievalModel:
        """The model; its parameters do not depend on the normalizer."""
        precisions = rounded_products.precisions(self.matmul, self.rounded)
        return MaxRetrievalModel(self.width, normalizer_named(normalizer), precisions, rngs=rngs)

    def scores(self, model: MaxRetrievalModel, batch: Batch, rngs: nnx.Rngs | None) -> Float[Array, "sets classes"]:
        """Returns class scores under the model's own normalizer; there is no dropout."""
        return model(batch).scores

    @property
    def test_lengths(self) -> tuple[int, ...]:
        """The powers of two to 2¹⁴."""
        return tuple(2**power for power in range(1, 15))

    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Batch:
        """Returns sets of `length` items, all of them visible."""
        return sample(key, sets, length, priority=self.priority)

    def test_set(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Batch:
        """Returns a set whose first `length` items, the same whatever the room, are visible."""
        return sample(key, 1, room, length[None], self.priority)

    def test_sets(self, length: int) -> int:
        """Returns 512: one query for each set makes long ones cheap enough."""
        return 512

    def for_testing(self, model: MaxRetrievalModel, items: int) -> MaxRetrievalModel:
        """Returns the model with a table of its hidden items, where they are fewer than the items that it will read."""
        rounded = self.matmul == "bfloat16" and self.priority == UNIFORM
        emulated = jax.default_backend() not in rounded_products.HARDWARE
        return KnownItems(model) if rounded and emulated and items > ENTRIES else model

    def priorities(self, batch: Batch) -> Float[Array, "sets items"]:
        """Returns ρ, and -inf for masked items."""
        return jnp.where(batch.mask, batch.items[..., 0], -jnp.inf)

    def items_alone(self, rho: Float[Array, ""]) -> Batch:
        """Returns a set of one item for each class, all of this ρ, with the query in the middle of its range."""
        kappa = jnp.arange(CLASSES, dtype=jnp.int32)
        features = jnp.concatenate([jnp.full((CLASSES, 1), rho, jnp.float32), jnp.eye(CLASSES, dtype=jnp.float32)], 1)
        query = jnp.full((CLASSES, 1), 0.5, jnp.float32)
        # With a masked item beside it, as a sum over one entry leaves no trace in a program for `probe` to find.
        mask = jnp.tile(jnp.array([True, False]), (CLASSES, 1))
        return Batch(jnp.stack([features, features], 1), query, mask, kappa)

    def at_once(self, length: int) -> int:
        """Returns how many sets have `ITEMS_AT_ONCE` items together."""
        return max(1, ITEMS_AT_ONCE // length)
