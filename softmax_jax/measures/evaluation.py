"""Accuracy, loss, entropy and largest weight by number of items: one encoding, read by every normalizer."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.measures.statistics import half_width, paired_p_value
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.runtime.devices import SEEDS, SETS, device_mesh
from softmax_jax.runtime.distributed import gathered, placed
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.max_retrieval import (
    BLOCK,
    CLASSES,
    Batch,
    MaxRetrieval,
    MaxRetrievalModel,
    features,
    sample,
    set_block,
    set_query,
)
from softmax_jax.training.trainer import Parameters, build_model

LENGTHS = tuple(2**power for power in range(1, 15))
PROTOCOLS = "fresh", "notebook"
DEFAULT_NORMALIZERS = ("softmax", "adaptive", "ssmax", "softpick", "hardmax")
KEY = 2**31
"""Of the sets to evaluate on, away from the keys of training seeds."""
ITEMS_PER_BATCH = 2048
"""Items encoded at once: enough to fill the cores, few enough to stay in cache."""
LONGEST_WHOLE = 2**14
"""Longer sets are encoded block by block, never as a whole."""

NOTEBOOK_LENGTHS = tuple(2**power for power in range(1, 13))
NOTEBOOK_SEEDS = range(11, 22)
NOTEBOOK_SETS = 32


class Measures(NamedTuple):
    """Means over sets. Accuracy in percent; loss and entropy in nats; of the weights' absolute values."""

    accuracy: Float[Array, "*shape"]
    loss: Float[Array, "*shape"]
    entropy: Float[Array, "*shape"]
    max_weight: Float[Array, "*shape"]
    extrapolated: Float[Array, "*shape"]
    """Percent of rows whose entropy lies outside the range that an adaptive normalizer was fitted to."""


class Row(NamedTuple):
    """What was measured of one seed; all but the last field make a line of evaluation.csv."""

    normalizer: str
    n: int
    seed: int
    accuracy: float
    loss: float
    entropy: float
    max_weight: float
    extrapolated: float = 0.0


CSV_COLUMNS = Row._fields[:-1]


class FreshSets(NamedTuple):
    """Sets to draw. Every set keeps its first `lengths` items visible, of the items that the program has room for."""

    keys: Key[Array, "*sets"]
    lengths: Int[Array, "*sets"]


def bucket(items: int) -> int:
    """The items that the program for sets of `items` has room for; the rest are masked.

    Four to a doubling, so that a program is compiled for a few lengths and not for each, at a quarter more items
    at the most. Powers of two, as `LENGTHS` are, need no padding.

    >>> [bucket(items) for items in (1, 5, 8, 9, 100, 1000, 1024, 1025)]
    [1, 5, 8, 10, 112, 1024, 1024, 1280]
    """
    step = max(1, 2 ** ((items - 1).bit_length() - 3))
    return -(-items // step) * step


def measure(model: MaxRetrievalModel, normalizers: Sequence[Normalizer], batch: Batch) -> Measures:
    """The measures of one batch under each normalizer, which all read the same logits."""
    hidden, logits = model.encode(batch.items, batch.query)
    # One product reads the hidden items once for all normalizers.
    weights = jnp.stack([normalizer(logits, where=batch.mask) for normalizer in normalizers], 1)
    scores = model.read(hidden, weights)
    return _measures(normalizers, logits, batch.mask, weights, scores, batch.answer)


def measure_blocks(
    model: MaxRetrievalModel, normalizers: Sequence[Normalizer], one: FreshSets, *, items: int
) -> Measures:
    """The measures of the one set of `draw_padded(one, items=items)`, of which a block at most is encoded at once.

    All logits are kept, at four bytes an item, so that every normalizer sees its whole row. A second pass sums the
    hidden items under the weights, and encodes again only those that some normalizer gives a weight that float32
    can tell from 0 beside the others.
    """
    (key,), (length,) = one
    query = set_query(key)

    def encode(rho: Array, kappa: Array, mask: Array) -> Any:
        return model.encode(features(rho[None], kappa[None], mask[None]), query[None])

    def draw(_: None, index: Array) -> tuple[None, tuple[Array, ...]]:
        rho, kappa, inside = set_block(key, index, items)
        mask = inside & (index * BLOCK + jnp.arange(rho.size) < length)
        return None, (rho, kappa.astype(jnp.int8), mask, encode(rho, kappa, mask).logits[0])

    _, drawn = jax.lax.scan(draw, None, jnp.arange(-(-items // BLOCK)))
    rho, kappa, mask, logits = (leaf.reshape(-1) for leaf in drawn)
    weights = jnp.stack([normalizer(logits, where=mask) for normalizer in normalizers])
    sizes = jnp.abs(weights)
    least = sizes.sum(-1, keepdims=True) * (jnp.finfo(sizes.dtype).eps / items)
    places = jnp.nonzero((sizes > least).any(0), size=rho.size, fill_value=rho.size)[0]
    size = min(items, BLOCK)

    def add_block(state: tuple[Array, Array]) -> tuple[Array, Array]:
        start, pooled = state
        chosen = jax.lax.dynamic_slice_in_dim(places, start, size)
        own = [leaf.at[chosen].get(mode="fill", fill_value=0) for leaf in (rho, kappa.astype(jnp.int32), mask)]
        hidden = encode(*own).hidden[0]
        return start + size, pooled + weights.at[:, chosen].get(mode="fill", fill_value=0) @ hidden

    def unfinished(state: tuple[Array, Array]) -> Array:
        start, _ = state
        return (start < rho.size) & (places[start] < rho.size)

    start = jnp.int32(0), jnp.zeros((len(normalizers), model.item_out.out_features))
    _, pooled = jax.lax.while_loop(unfinished, add_block, start)
    scores = model.read_pooled(pooled, weights.sum(-1))
    answer = kappa[jnp.where(mask, rho, -1).argmax()].astype(jnp.int32)
    return _measures(normalizers, logits[None], mask[None], weights[None], scores[None], answer[None])


def _measures(
    normalizers: Sequence[Normalizer],
    logits: Float[Array, "sets items"],
    mask: Bool[Array, "sets items"],
    weights: Float[Array, "sets normalizers items"],
    scores: Float[Array, "sets normalizers classes"],
    answer: Int[Array, " sets"],
) -> Measures:
    answer = jnp.broadcast_to(answer[:, None], scores.shape[:2])
    return Measures(
        accuracy=100 * (scores.argmax(-1) == answer).mean(0),
        loss=optax.softmax_cross_entropy_with_integer_labels(scores, answer).mean(0),
        entropy=weight_entropy(weights).mean(0),
        max_weight=jnp.abs(weights).max(-1).mean(0),
        extrapolated=jnp.stack([extrapolated_share(normalizer, logits, mask) for normalizer in normalizers]),
    )


def extrapolated_share(
    normalizer: Normalizer, logits: Float[Array, "sets items"], where: Bool[Array, "sets items"]
) -> Float[Array, ""]:
    """Percent of rows that ask a fitted scale about an entropy it was not fitted to; 0 for all other normalizers."""
    scale = normalizer.scale
    if not isinstance(scale, EntropyPolynomial) or scale.entropy_range is None:
        return jnp.zeros(())
    return 100 * scale.extrapolates(logits, -1, where).mean()


def fresh_batches(key: Key[Array, ""], seeds: Int[Array, " seeds"], items: int, sets: int) -> Key[Array, "seeds ..."]:
    """Keys of `sets` sets of each seed, grouped into batches: shape (seeds, batches, sets per batch).

    Batches divide evenly among the devices of a seed. A set depends on the key, its seed, `items` and its index
    alone, not on how sets are grouped.
    """
    of_device = sets // device_mesh(len(seeds), sets).shape[SETS]
    per_batch = math.gcd(of_device, max(1, 2 ** int(math.log2(max(1, ITEMS_PER_BATCH // items)))))

    def keys(seed: Int[Array, ""]) -> Key[Array, " sets"]:
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, seed), items), sets)

    return jax.vmap(keys)(seeds).reshape(len(seeds), sets // per_batch, per_batch)


def draw_fresh(keys: Key[Array, " sets"], *, items: int) -> Batch:
    """One set per key."""
    return jax.tree.map(lambda leaf: leaf[:, 0], jax.vmap(lambda key: sample(key, 1, items))(keys))


@functools.cache
def fresh_draw(items: int) -> Callable[[Any], Batch]:
    """One function object per length, so that the compiled code is found again."""
    return functools.partial(draw_fresh, items=items)


def draw_padded(sets: FreshSets, *, items: int) -> Batch:
    """Sets with room for `items` items. Those visible are the same whatever the room, as each has its own bits."""
    drawn = jax.vmap(lambda key, length: sample(key, 1, items, length[None]))(*sets)
    return jax.tree.map(lambda leaf: leaf[:, 0], drawn)


@functools.cache
def padded_draw(items: int) -> Callable[[Any], Batch]:
    """One function object per bucket, likewise."""
    return functools.partial(draw_padded, items=items)


@functools.cache
def blockwise_measure(items: int) -> Callable[..., Measures]:
    """One function object per bucket, likewise."""
    return functools.partial(measure_blocks, items=items)


def notebook_batches(seeds: Int[Array, " seeds"], items: int) -> Batch:
    """The evaluation stream of the published recreation: eleven keys of 32 sets, the same for every seed.

    Its random bits are those of JAX's old threefry layout, so accuracies compare to tables published from it.
    """

    def one(seed: int) -> Batch:
        _, key = jax.random.split(jax.random.key(seed))
        _, rho_key, kappa_key, query_key = jax.random.split(key, 4)
        rho = jax.random.uniform(rho_key, (NOTEBOOK_SETS, items, 1))
        kappa = jax.random.randint(kappa_key, (NOTEBOOK_SETS, items), 0, CLASSES)
        query = jax.random.uniform(query_key, (NOTEBOOK_SETS, 1, 1))[:, 0]
        features = jnp.concatenate([rho, jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
        answer = jnp.take_along_axis(kappa, rho.argmax(1), 1)[:, 0]
        return Batch(features, query, jnp.ones(kappa.shape, bool), answer)

    with jax.threefry_partitionable(False):
        batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one(seed) for seed in NOTEBOOK_SEEDS])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), batches)


def as_given(batch: Any) -> Any:
    """The batch itself, for what is drawn before or later."""
    return batch


@functools.partial(jax.jit, static_argnums=0, static_argnames=("structure", "draw"))
def for_each_seed(
    compute: Callable[..., Any],
    parameters: Parameters,
    batches: Any,
    *everywhere: Any,
    structure: nnx.GraphDef,
    draw: Callable[[Any], Any],
) -> Any:
    """`compute(model, *everywhere, batch)` on every batch of every seed: leaves with leading axes (seeds, batches).

    Seeds are divided among the devices, and batches among those left over; no device waits for another. The
    arguments are those that `on_devices` returns.
    """

    def on_device(parameters: Parameters, batches: Any, everywhere: Any) -> Any:
        def one_seed(arguments: tuple[Parameters, Any]) -> Any:
            own_parameters, own_batches = arguments
            model = nnx.merge(structure, own_parameters)
            return jax.lax.map(lambda batch: compute(model, *everywhere, draw(batch)), own_batches)

        return jax.lax.map(one_seed, (parameters, batches))

    by_batch = P(SEEDS, SETS)
    spread = jax.shard_map(
        on_device, mesh=_mesh_of(batches), in_specs=(P(SEEDS), by_batch, P()), out_specs=by_batch, check_vma=False
    )
    return spread(parameters, batches, everywhere)


def _mesh_of(batches: Any) -> jax.sharding.Mesh:
    return device_mesh(*jax.tree.leaves(batches)[0].shape[:2])


def on_devices(parameters: Parameters, batches: Any, everywhere: Any = ()) -> tuple[Parameters, Any, Any]:
    """Parameters of every seed, its batches, and what all seeds share, each where `for_each_seed` needs them."""
    mesh = _mesh_of(batches)
    specs = (P(SEEDS), P(SEEDS, SETS), P())
    return tuple(
        placed(tree, NamedSharding(mesh, spec)) for tree, spec in zip((parameters, batches, everywhere), specs)
    )


def on_batches(
    compute: Callable[..., Any], parameters: Parameters, batches: Any, *everywhere: Any, draw: Callable[[Any], Any]
) -> Any:
    """`for_each_seed` of the max-retrieval model, from arguments wherever they are."""
    structure, _ = build_model(MaxRetrieval(width=parameters["item_in"]["kernel"].shape[-1]))
    own_parameters, own_batches, everywhere = on_devices(parameters, batches, everywhere)
    return for_each_seed(compute, own_parameters, own_batches, *everywhere, structure=structure, draw=draw)


def on_fresh_sets(
    compute: Callable[..., Any],
    parameters: Parameters,
    *everywhere: Any,
    key: Key[Array, ""],
    seeds: Sequence[int],
    items: int,
    sets: int,
) -> Any:
    """`compute(model, *everywhere, batch)` on fresh sets of each seed: leaves with leading axes (seeds, batches)."""
    batches = fresh_batches(key, jnp.asarray(seeds, jnp.int32), items, sets)
    return on_batches(compute, parameters, batches, *everywhere, draw=fresh_draw(items))


def set_by_set(tree: Any) -> Any:
    """Numpy arrays of leading axes (seeds, sets), of leaves (seeds, batches, sets per batch, ...)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, *leaf.shape[3:]), tree)


def evaluate(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    *,
    seeds: Sequence[int],
    lengths: Sequence[int] = LENGTHS,
    sets: int = 512,
    protocol: str = "fresh",
    key: Key[Array, ""] | None = None,
) -> Iterator[list[Row]]:
    """Yields, length by length, a row per normalizer and seed.

    `parameters` have a leading axis over `seeds`. Protocol "fresh" draws `sets` new sets for every seed and
    length from `key`, the same for every normalizer; "notebook" ignores `sets` and `key`. Fresh sets of more than
    `LONGEST_WHOLE` items are encoded block by block. Compiles once for the lengths of a `bucket`, which are masked to
    their own; under "notebook" once a length. Raises, before it computes or yields anything, unless its arguments fit
    each other.
    """
    check_measured(parameters, normalizers, seeds, lengths, sets, key)
    checks.one_of("protocol", protocol, PROTOCOLS)
    return _evaluate(parameters, normalizers, seeds, lengths, sets, protocol, key)


def check_measured(
    parameters: Any, normalizers: Any, seeds: Any, lengths: Any, sets: Any, key: Any, *, fewest: int = 1
) -> None:
    """Raises unless parameters of these seeds can be measured under these normalizers on sets of these lengths."""
    check_parameters(parameters, seeds)
    if not isinstance(normalizers, Mapping) or not normalizers:
        raise TypeError(
            f"normalizers is {checks.shown(normalizers)}; it must be normalizers by name, at least one: "
            "give {'softmax': softmax_jax.normalizer('softmax')}"
        )
    for name, one in normalizers.items():
        if not isinstance(one, Normalizer):
            raise TypeError(
                f"normalizers[{name!r}] is {checks.shown(one)}; it must be a Normalizer: build it by name with "
                "softmax_jax.normalizer"
            )
    check_each_once("lengths", lengths)
    for length in lengths:
        checks.whole("each of lengths", length, fewest, 16, 2**20)
    checks.whole("sets", sets, 1, 512, 2**20)
    if key is not None:
        checks.random_key(key)


def check_parameters(parameters: Any, seeds: Any) -> None:
    """Raises unless these are parameters of the max-retrieval model with a leading axis over these seeds."""
    check_each_once("seeds", seeds)
    for seed in seeds:
        checks.whole("each of seeds", seed, 0, 1, 2**31 - 1)
    try:
        shape = jnp.shape(parameters["item_in"]["kernel"])
    except (TypeError, KeyError, IndexError):
        raise TypeError(
            f"parameters are {checks.shown(parameters)[:80]}; they must be those of the max-retrieval model: "
            "load them with softmax_jax.training.run_directory.load_checkpoint"
        ) from None
    if len(shape) != 3 or shape[0] != len(seeds):
        raise ValueError(
            f"parameters have an item_in kernel of shape {shape} for {len(seeds)} seeds; it must have a leading axis "
            "over the seeds: give as many seeds, or add the axis with leaf[None]"
        )


def check_each_once(name: str, values: Any) -> None:
    """Raises unless these are several values, at least one, each once."""
    try:
        given = list(values)
    except TypeError:
        given = None
    if given is None or isinstance(values, str):
        raise TypeError(f"{name} is {checks.shown(values)}; it must be a sequence of whole numbers, such as (1, 2)")
    if not given or len(set(given)) < len(given):
        raise ValueError(
            f"{name} is {checks.shown(values)}; it must have at least one, each once: leave the others out"
        )


def _evaluate(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    seeds: Sequence[int],
    lengths: Sequence[int],
    sets: int,
    protocol: str,
    key: Key[Array, ""] | None,
) -> Iterator[list[Row]]:
    """`evaluate` of what was checked."""
    everywhere = tuple(normalizers.values())
    key = jax.random.key(KEY) if key is None else key
    seed_array = jnp.asarray(seeds, jnp.int32)

    def measures_at(items: int) -> Measures:
        compute, draw = measure, as_given
        if protocol == "notebook":
            batches = notebook_batches(seed_array, items)
        else:
            keys = fresh_batches(key, seed_array, items, sets)
            batches = FreshSets(keys, jnp.full(keys.shape, items, jnp.int32))
            if items > LONGEST_WHOLE:
                compute = blockwise_measure(bucket(items))
            else:
                draw = padded_draw(bucket(items))
        return jax.block_until_ready(on_batches(compute, parameters, batches, everywhere, draw=draw))

    # Two sets of a million items at once would take twice the memory.
    measured = (map if max(lengths) > LONGEST_WHOLE else two_at_a_time)(measures_at, lengths)
    # Gathered here and not by the threads, as processes must gather in the same order.
    for items, measures in zip(lengths, measured):
        table = np.stack([column.mean(1, dtype=np.float64) for column in gathered(measures)], -1)
        yield [
            Row(name, items, seed, *table[seed_index, name_index].tolist())
            for name_index, name in enumerate(normalizers)
            for seed_index, seed in enumerate(seeds)
        ]


class Summary(NamedTuple):
    """One normalizer at one length, over seeds: means, 95 % half-width, p against softmax (None if undefined)."""

    normalizer: str
    n: int
    accuracy: float
    interval: float | None
    loss: float
    entropy: float
    max_weight: float
    p_value: float | None
    extrapolated: float = 0.0


def summarize(rows: Sequence[Row], baseline: str = "softmax") -> list[Summary]:
    """Means over seeds, with Student's t interval of the accuracy and the paired t-test against the baseline."""
    if not rows:
        raise ValueError("rows is empty; it must have at least one: give those that evaluate yields")
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.normalizer, row.n), []).append(row)
    summaries = []
    for (name, n), group in groups.items():
        accuracy = [row.accuracy for row in group]
        reference = [row.accuracy for row in groups.get((baseline, n), [])]
        loss, entropy, max_weight, extrapolated = np.mean([row[4:] for row in group], 0).tolist()
        p_value = None if name == baseline else paired_p_value(accuracy, reference)
        interval = half_width(accuracy)
        mean = float(np.mean(accuracy))
        summaries.append(Summary(name, n, mean, interval, loss, entropy, max_weight, p_value, extrapolated))
    return summaries
