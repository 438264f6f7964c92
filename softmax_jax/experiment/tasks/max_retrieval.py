"""Max retrieval: name the class of the largest item of a set.

An item is [ρ, one-hot(κ)] with ρ ~ U(0, 1), or as `priorities` has it, and κ uniform over 10 classes; the query is one
irrelevant number from U(0, 1); the answer is the κ of the item with the largest ρ. One attention head must find that
item, so its weights must stay sharp as the set grows.

Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, section 3 and appendix.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.retrieval_model import BLOCK, CLASSES, ENTRIES, Batch, KnownItems, MaxRetrievalModel
from softmax_jax.experiment.tasks.task import Task, data_key, option
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.arithmetic import place_of_largest
from softmax_jax.normalizers.execution import on_cpu
from softmax_jax.normalizers.registry import normalizer as normalizer_named
from softmax_jax.refusal import Refusal

ITEMS_AT_ONCE = 2**14
"""Items of test sets to read at once: enough to fill the cores."""
LEAST_SETS = 32
"""Sets of a batch that a CPU core keeps: a set costs it about 10 µs, the all-reduce of the paper's model some 100."""
UNIFORM, NEEDLE = "uniform", "needle"
LEAD = 0.2
"""How far a needle lies above the highest that another item can be."""


def beta_quantile(k: int) -> Callable[[Array], Array]:
    """Returns the quantile function of Beta(1, k), whose density is k·(1 - ρ)^(k - 1)."""
    return lambda u: 1 - (1 - u) ** (1 / k)


def needle_quantile(u: Float[Array, "*items"]) -> Float[Array, "*items"]:
    """Returns a uniform draw unchanged, and for a draw of 1 a needle, beyond the highest of the others."""
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

    # A long set is drawn block by block, so its items never depend on the memory used. All blocks are one operation:
    # compiling them one after the other would cost more than running them.
    blocks = jax.vmap(draw_block, out_axes=1)(jnp.arange(-(-items // BLOCK), dtype=jnp.int32))
    rho, kappa = (drawn.reshape(sets, -1)[:, :items] for drawn in blocks)
    if priority == NEEDLE:
        rho = rho.at[:, 0].set(1.0)
    return _batch(rho, kappa, _visible(lengths, sets, items), query_key, priority)


def sample_near_ties(
    key: Key[Array, ""], sets: int, items: int, nearest_of: int, lengths: Int[Array, "#sets"] | None = None
) -> Batch:
    """Draws each set `nearest_of` times as `sample` does, and keeps the draw with the closest top two.

    These are its two largest visible ρ. Classes and queries stay uniform.

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
    second = jnp.where(visible < best, visible, -1).max(-1)  # draws equal to the best are passed over: no right answer
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
    largest = place_of_largest(jnp.where(mask, draws, -1))[:, None]
    answer = jnp.take_along_axis(kappa, largest, 1)[:, 0]
    query = jax.random.uniform(key, (len(draws), 1), jnp.float32)
    rho = QUANTILES[priority](draws)
    features = jnp.concatenate([rho[..., None], jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
    return Batch(jnp.where(mask[..., None], features, 0), query, mask, answer)


@dataclasses.dataclass(frozen=True)
class MaxRetrieval(Task):
    """The task with its sizes; raises Refusal for sizes that make no task."""

    name: ClassVar[str] = "max_retrieval"
    classes: ClassVar[int] = CLASSES

    batch: int = 128
    """Sets per batch."""
    min_items: int = 5
    """Fewest items of a set. All sets of a batch have the same number, drawn uniformly."""
    max_items: int = 16
    """Most items of a set."""
    steps_per_batch: int = 1
    """Steps that reuse a batch before a new one is drawn."""
    nearest_of: int = 1
    """Draw each set this many times and keep the draw with the closest top two. 1 turns this off."""
    priority: str = UNIFORM
    """How ρ is distributed: uniform, beta_2, beta_4, gaussian, exponential, or needle, which leads by a fixed lead."""
    width: int = 128
    """Width of every layer."""
    matmul: str = rounded_products.FLOAT32
    """What matrix products round to, forward and backward: float32, tensorfloat32, bfloat16 or float8_e4m3."""
    rounded: str = "all"
    """Which products: inputs, those that read ρ, class or query; dense, all by a kernel; all, those over items too."""

    def __post_init__(self) -> None:
        rounded_products.check(self.matmul, self.rounded)
        checks.one_of("--priority", self.priority, QUANTILES)
        most = {"batch": 2**20, "min_items": 2**20, "max_items": 2**20, "steps_per_batch": 2**31 - 1}
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

    @property
    def least_sets(self) -> int:
        """Divides batches where that saves time: on CPUs into parts of at least `LEAST_SETS` sets."""
        return LEAST_SETS if on_cpu() else 1

    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Batch:
        """Returns the batch of a training step of a seed."""
        key = jax.random.fold_in(data_key(seed), step // self.steps_per_batch)
        length_key, set_key = jax.random.split(key)
        length = jax.random.randint(length_key, (1,), self.min_items, self.max_items + 1, jnp.int32)
        if self.nearest_of == 1:
            return sample(set_key, self.batch, self.max_items, length, self.priority)
        return sample_near_ties(set_key, self.batch, self.max_items, self.nearest_of, length)

    def on_visible(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function on the visible items: a compiled branch for every length that a batch may have.

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
        """Returns the model; its parameters do not depend on the normalizer."""
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

    @property
    def shared(self) -> tuple[int, ...]:
        """256 and 1,024. A task derived from this one may draw other test sets, so it shares no program."""
        return (256, 1024) if type(self) is MaxRetrieval else ()

    def test_set(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Batch:
        """Returns a set whose first `length` items, the same whatever the room, are visible."""
        if not self.shared:
            return self.test_batch(key, room, 1)
        return sample(key, 1, room, length[None], self.priority)

    def test_sets(self, length: int) -> int:
        """Returns 512: one query for each set makes long ones cheap enough."""
        return 512

    def for_testing(self, model: MaxRetrievalModel, items: int) -> MaxRetrievalModel:
        """Returns the model with a table of its hidden items, where they are fewer than the items that it will read."""
        rounded = self.matmul == "bfloat16" and self.priority == UNIFORM
        emulated = jax.default_backend() not in rounded_products.HARDWARE
        return KnownItems(model) if rounded and emulated and items > ENTRIES else model

    def at_once(self, length: int) -> int:
        """Returns how many sets have `ITEMS_AT_ONCE` items together."""
        return max(1, ITEMS_AT_ONCE // length)

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
