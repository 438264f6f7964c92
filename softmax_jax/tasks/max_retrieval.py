"""Max retrieval: name the class of the largest item of a set.

An item is [ρ, one-hot(κ)] with ρ ~ U(0, 1), or as `priorities` has it, and κ uniform over 10 classes; the query is one
irrelevant number from U(0, 1); the answer is the κ of the item with the largest ρ. One attention head must find that
item, so its weights must stay sharp as the set grows.

Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, section 3 and appendix.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.masking import visible_logits
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer as normalizer_named
from softmax_jax.tasks import priorities, products
from softmax_jax.tasks.task import Reading, SetsPerBatch, Task, data_key, option

CLASSES = 10
FEATURES = 1 + CLASSES
BLOCK = 1024
"""Items drawn from one key. Longer sets are drawn block by block, so their items never depend on the memory used."""


TEST_KEY = 2**31
"""Of the test sets, away from the keys of training seeds."""
ITEMS_AT_ONCE = 2048
"""Items of test sets that are encoded at once."""


class Batch(NamedTuple):
    """Sets of items. Features of masked items are 0; `answer` is the class of the largest visible item."""

    items: Float[Array, "sets items features"]
    query: Float[Array, "sets 1"]
    mask: Bool[Array, "sets items"]
    answer: Int[Array, " sets"]


def sample_blocks(
    key: Key[Array, ""], sets: int, items: int, lengths: Int[Array, "#sets"] | None = None
) -> Iterator[Batch]:
    """Draws sets of up to `items` items in blocks of at most `BLOCK` along the item axis.

    Set i keeps its first `lengths[i]` items visible, all of them by default. The `answer` of each block is the
    one among all items up to there, so that of the last block answers the whole set. Joined along the item
    axis the blocks equal `sample` for the same arguments.

    >>> blocks = list(sample_blocks(jax.random.key(0), sets=2, items=1500))
    >>> [block.items.shape for block in blocks]
    [(2, 1024, 11), (2, 476, 11)]
    """
    item_key, query_key = jax.random.split(key)
    query = jax.random.uniform(query_key, (sets, 1), jnp.float32)
    lengths = _lengths(lengths, sets, items)
    best = jnp.full(sets, -1.0, jnp.float32)
    answer = jnp.zeros(sets, jnp.int32)
    for start in range(0, items, BLOCK):
        rho, kappa = _draw_block(item_key, start // BLOCK, sets, min(items, BLOCK))
        rho, kappa = rho[:, : items - start], kappa[:, : items - start]
        mask = start + jnp.arange(rho.shape[1], dtype=jnp.int32)[None, :] < lengths[:, None]
        block_best, block_answer = _largest(rho, kappa, mask)
        answer = jnp.where(block_best > best, block_answer, answer)
        best = jnp.maximum(block_best, best)
        yield Batch(features(rho, kappa, mask), query, mask, answer)


def sample(
    key: Key[Array, ""],
    sets: int,
    items: int,
    lengths: Int[Array, "#sets"] | None = None,
    priority: str = priorities.UNIFORM,
) -> Batch:
    """Draws sets of up to `items` items, a pure function of the key.

    Set i keeps its first `lengths[i]` items visible, all of them by default; the rest are padding. `priority` names the
    distribution of ρ.

    >>> batch = sample(jax.random.key(0), sets=2, items=4, lengths=jnp.array([4, 1]))
    >>> batch.mask.tolist()
    [[True, True, True, True], [True, False, False, False]]
    """
    item_key, query_key = jax.random.split(key)
    # All blocks in one operation: compiling them one after the other would cost more than running them.
    draw = jax.vmap(lambda index: _draw_block(item_key, index, sets, min(items, BLOCK), priority), out_axes=1)
    drawn = draw(jnp.arange(-(-items // BLOCK), dtype=jnp.int32))
    rho, kappa = (blocks.reshape(sets, -1)[:, :items] for blocks in drawn)
    mask = jnp.arange(items, dtype=jnp.int32)[None, :] < _lengths(lengths, sets, items)[:, None]
    return _batch(rho, kappa, mask, query_key, priority)


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
    mask = jnp.arange(items, dtype=jnp.int32)[None, :] < _lengths(lengths, sets, items)[:, None]
    rho = jax.random.uniform(rho_key, (sets, nearest_of, items), jnp.float32)
    visible = jnp.where(mask[:, None], rho, -1)
    best = visible.max(-1, keepdims=True)
    second = jnp.where(visible < best, visible, -1).max(-1)  # equal ones have no right answer and are passed over
    nearest = (best[..., 0] - second).argmin(1)
    rho = jnp.take_along_axis(rho, nearest[:, None, None], 1)[:, 0]
    kappa = jax.random.randint(kappa_key, rho.shape, 0, CLASSES, jnp.int32)
    return _batch(rho, kappa, mask, query_key)


def _batch(
    rho: Float[Array, "sets items"],
    kappa: Int[Array, "sets items"],
    mask: Bool[Array, "sets items"],
    key: Key[Array, ""],
    priority: str = priorities.UNIFORM,
) -> Batch:
    """The batch of these items, with queries from the key."""
    _, answer = _largest(rho, kappa, mask)
    query = jax.random.uniform(key, (len(rho), 1), jnp.float32)
    return Batch(features(rho, kappa, mask, priority), query, mask, answer)


def _lengths(lengths: Int[Array, "#sets"] | None, sets: int, items: int) -> Int[Array, " sets"]:
    return jnp.full(sets, items, jnp.int32) if lengths is None else jnp.broadcast_to(lengths, (sets,))


def _draw_block(
    item_key: Key[Array, ""], index: ArrayLike, sets: int, size: int, priority: str = priorities.UNIFORM
) -> tuple[Float[Array, "sets size"], Int[Array, "sets size"]]:
    """The uniform draws behind ρ, and κ, of the block of that index; a needle is the first item, at 1."""
    rho_key, kappa_key = jax.random.split(jax.random.fold_in(item_key, index))
    rho = jax.random.uniform(rho_key, (sets, size), jnp.float32)
    if priority == priorities.NEEDLE:
        rho = jnp.where((jnp.asarray(index) == 0) & (jnp.arange(size) == 0)[None], 1.0, rho)
    return rho, jax.random.randint(kappa_key, (sets, size), 0, CLASSES, jnp.int32)


def _largest(
    rho: Float[Array, "sets items"], kappa: Int[Array, "sets items"], mask: Bool[Array, "sets items"]
) -> tuple[Float[Array, " sets"], Int[Array, " sets"]]:
    """The largest visible ρ of each set (-1 if none is) and its class."""
    visible = jnp.where(mask, rho, -1)
    winner = jnp.argmax(visible, 1)[:, None]
    return visible.max(1), jnp.take_along_axis(kappa, winner, 1)[:, 0]


def features(
    draws: Float[Array, "sets items"],
    kappa: Int[Array, "sets items"],
    mask: Bool[Array, "sets items"],
    priority: str = priorities.UNIFORM,
) -> Float[Array, "sets items features"]:
    """[ρ, one-hot(κ)] for visible items, zeros for masked ones, with ρ by its distribution from uniform draws."""
    rho = priorities.QUANTILES[priority](draws)
    features = jnp.concatenate([rho[..., None], jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
    return jnp.where(mask[..., None], features, 0)


def set_block(
    key: Key[Array, ""], index: ArrayLike, items: int, priority: str = priorities.UNIFORM
) -> tuple[Float[Array, " block"], Int[Array, " block"], Bool[Array, " block"]]:
    """The draws behind ρ, κ and mask of one block of the one set of `sample(key, 1, items)`, wherever in it.

    >>> rho, kappa, mask = set_block(jax.random.key(0), 1, items=1500)
    >>> rho.shape, int(mask.sum())
    ((1024,), 476)
    """
    item_key, _ = jax.random.split(key)
    rho, kappa = _draw_block(item_key, index, 1, min(items, BLOCK), priority)
    place = jnp.asarray(index, jnp.int32) * BLOCK + jnp.arange(rho.shape[1], dtype=jnp.int32)
    return rho[0], kappa[0], place < items


def set_query(key: Key[Array, ""]) -> Float[Array, "1"]:
    """The query of the one set of `sample(key, 1, items)`."""
    return jax.random.uniform(jax.random.split(key)[1], (1, 1), jnp.float32)[0]


class Encoded(NamedTuple):
    """What the model computes before any normalizer is applied."""

    hidden: Float[Array, "sets items width"]
    logits: Float[Array, "sets items"]


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
        precisions: Sequence[str] = (products.FLOAT32,) * 3,
        *,
        rngs: nnx.Rngs,
    ):
        # Bound to a function, the numbers of the normalizer are no state of the module, even if they are arrays.
        self.normalize = functools.partial(_normalize, normalizer)
        inputs, dense, over_items = precisions
        self.by_kernel, self.over_items = (functools.partial(products.product, one) for one in (dense, over_items))
        layer = functools.partial(products.layer, rngs=rngs)
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

    def encode(self, items: Float[Array, "sets items features"], query: Float[Array, "sets 1"]) -> Encoded:
        """Hidden items and attention logits. Costly, and the same for every normalizer."""
        hidden = self.hidden(items)
        return Encoded(hidden, self.logits(hidden, query))

    def hidden(self, items: Float[Array, "sets items features"]) -> Float[Array, "sets items width"]:
        """What the encoder makes of each item."""
        sets, count, _ = items.shape
        # A Dense layer on flat items is faster forward and, on CPUs, twice as fast backward.
        flat = nnx.gelu(self.item_in(items.reshape(sets * count, -1)))
        return nnx.gelu(self.item_out(flat)).reshape(sets, count, -1)

    def logits(
        self, hidden: Float[Array, "sets items width"], query: Float[Array, "sets 1"]
    ) -> Float[Array, "sets items"]:
        """Attention logits of hidden items."""
        q = self.attention_query(nnx.gelu(self.query_out(nnx.gelu(self.query_in(query)))))
        kernel, bias = self.attention_key.kernel[...], self.attention_key.bias[...]  # pyright: ignore[reportOptionalSubscript]
        folded, shift = self.by_kernel(products.LAYER, q, kernel.T), self.by_kernel("...i,i->...", q, bias)
        logits = self.over_items("snw,sw->sn", hidden, folded) + shift[:, None]
        return logits / kernel.shape[1] ** 0.5

    def pool(
        self, weights: Float[Array, "sets *normalizers items"], hidden: Float[Array, "sets items width"]
    ) -> Float[Array, "sets *normalizers width"]:
        """Sums of the hidden items under attention weights, of one normalizer or of several at once."""
        return self.over_items("s...n,snw->s...w", weights, hidden)

    def read(
        self, hidden: Float[Array, "sets items width"], weights: Float[Array, "sets *normalizers items"]
    ) -> Float[Array, "sets *normalizers classes"]:
        """Class scores from the hidden items under attention weights, of one normalizer or of several at once."""
        return self.read_pooled(self.pool(weights, hidden), weights.sum(-1))

    def read_pooled(
        self, pooled: Float[Array, "*sets width"], total: Float[Array, "*sets"]
    ) -> Float[Array, "*sets classes"]:
        """Class scores from weighted sums of hidden items and the sums of their weights."""
        kernel, bias = self.attention_value.kernel[...], self.attention_value.bias[...]  # pyright: ignore[reportOptionalSubscript]
        value = self.by_kernel(products.LAYER, pooled, kernel)
        value += self.by_kernel(products.LAYER, total[..., None], bias[None, :])
        return self.read_out(nnx.gelu(self.read_in(self.attention_out(value))))

    def __call__(self, batch: Batch, normalizer: Normalizer | None = None) -> Attended:
        """Class scores with the logits and weights of the attention, masked items at 0 in both.

        Under a normalizer, or else under the one that the model was built with.
        """
        hidden, logits = self.encode(batch.items, batch.query)
        weights = (normalizer or self.normalize)(logits, where=batch.mask)
        return Attended(self.read(hidden, weights), visible_logits(logits, batch.mask), weights)


def _normalize(normalizer: Normalizer, logits: Array, where: Array) -> Array:
    return normalizer.weigh(logits, where=where)


@dataclasses.dataclass(frozen=True)
class MaxRetrieval(Task):
    """The task with its sizes; raises ValueError for sizes that make no task."""

    name: ClassVar[str] = "max_retrieval"
    divides_batches: ClassVar[bool] = True

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
    priority: str = priorities.UNIFORM
    """How ρ is distributed: uniform, beta_2, beta_4, gaussian, exponential, or needle, which leads by a fixed lead."""
    width: int = 128
    """Width of every layer."""
    matmul: str = products.FLOAT32
    """What matrix products round to, forward and backward: float32, tensorfloat32, bfloat16 or float8_e4m3."""
    rounded: str = "all"
    """Which of them: inputs, those that read ρ, class or query; dense, all by a kernel; all, those over items too."""

    def __post_init__(self) -> None:
        products.check(self.matmul, self.rounded)
        checks.one_of("--priority", self.priority, priorities.QUANTILES)
        most = {"sets": 2**20, "min_items": 2**20, "max_items": 2**20, "steps_per_batch": 2**31 - 1}
        for name, bound in (most | {"nearest_of": 2**10, "width": 2**14}).items():
            checks.whole(option(name), getattr(self, name), 1, getattr(MaxRetrieval, name), bound)
        if self.max_items < self.min_items:
            raise ValueError(f"--max-items is {self.max_items}: it must be at least min_items={self.min_items}")
        if self.nearest_of > 1 and self.min_items == 1:
            rule = "sets of one item (--min-items 1) have no tie, so it must be 1"
            raise ValueError(f"--nearest-of is {self.nearest_of}: {rule}")
        if self.nearest_of > 1 and self.priority != priorities.UNIFORM:
            raise ValueError(f"--priority is {self.priority}: near ties (--nearest-of) are of uniform ρ alone")

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
        precisions = products.precisions(self.matmul, self.rounded)
        return MaxRetrievalModel(self.width, normalizer_named(normalizer), precisions, rngs=rngs)

    def scores(self, model: MaxRetrievalModel, batch: Batch, rngs: nnx.Rngs | None) -> Float[Array, "sets classes"]:
        """Class scores under the model's own normalizer; there is no dropout."""
        return model(batch).scores

    @property
    def test_lengths(self) -> tuple[int, ...]:
        """The powers of two to 2¹⁴."""
        return tuple(2**power for power in range(1, 15))

    def test_keys(
        self, seed: Int[Array, ""], length: int, sets: int, key: Key[Array, ""] | None = None
    ) -> Key[Array, " sets"]:
        """A key for each test set of a seed at a length."""
        key = jax.random.key(TEST_KEY) if key is None else key
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, seed), length), sets)

    def room(self, length: int) -> int:
        """Four sizes to a doubling, so that a program is compiled for a few lengths and not for each.

        That costs a quarter more items at the most. Powers of two need no padding.

        >>> [MaxRetrieval().room(length) for length in (1, 5, 8, 9, 100, 1000, 1024, 1025)]
        [1, 5, 8, 10, 112, 1024, 1024, 1280]
        """
        step = max(1, 2 ** ((length - 1).bit_length() - 3))
        return -(-length // step) * step

    def at_once(self, length: int) -> int:
        """Enough sets to fill the cores, few enough for their items to stay in cache."""
        return max(1, 2 ** int(math.log2(max(1, ITEMS_AT_ONCE // length))))

    def draw(self, keys: Key[Array, " sets"], lengths: Int[Array, " sets"], room: int) -> Batch:
        """A set for each key. Its visible items are the same whatever the room, as each has its own bits."""
        drawn = jax.vmap(lambda key, length: sample(key, 1, room, length[None], self.priority))(keys, lengths)
        return jax.tree.map(lambda leaf: leaf[:, 0], drawn)

    def read(self, model: MaxRetrievalModel, normalizers: Sequence[Normalizer | None], batch: Batch) -> Reading:
        """One encoding, read by all normalizers; one product reads the hidden items once for all of them."""
        hidden, logits = model.encode(batch.items, batch.query)
        weights = jnp.stack([(one or model.normalize)(logits, where=batch.mask) for one in normalizers], 1)
        return Reading(model.read(hidden, weights), batch.answer, logits, weights, batch.mask)
