"""Cost of a training step at the paper's setting against its peers and against its own matrix products, in one run.

    python -m benchmarks.training

The setting: 128 sets of 5 to 16 items, width 128, Adam. Ours is the loop of train.py for one seed, with the device
settings of train.py. All contenders have all cores:

- the notebook's algorithm: items padded to 4096 with -1, stock Flax attention, one jitted step per Python call, a batch
  that is shuffled between steps;
- a plain port: stock Flax layers and attention, items padded to 16, all steps in one `lax.scan`;
- PyTorch in eager mode, padded to 16, where it is installed.

The floor is the time that the step's matrix products alone take at the rate of large ones on all cores. Each contender
runs in a process of its own, and all take turns. On a machine whose cores multiply half as fast, ours took 1.4 to 1.9
floors: products gain more from faster cores than what stands beside them.

Pays: batches drawn for ten steps at once; items through the dense layers as one flat array; one vector for the gradient
that cores share (one wait a step, not 24).

Tried without gain: gelu with its slope in one pass; the gradient of a kernel from a transposed copy of its inputs, or
in pieces of 64 rows; an exchange between neighbours instead of the sum over devices; other libraries for products; one
device with a thread for each core. Vectors of 512 bits help, but need a flag of the compiler, and commands compile as
users' programs do.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

from benchmarks.costs import mean_multiply_adds, products_alone
from benchmarks.timing import Result, contest, processes_in_turn, results_against, timed
from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval, sample
from softmax_jax.experiment.tasks.retrieval_model import CLASSES, FEATURES, Batch
from softmax_jax.experiment.training import trainer as training
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_run

NOTEBOOK_ITEMS = 4096
OURS, NOTEBOOK, PLAIN, TORCH = "ours", "the notebook's algorithm", "a plain port", "PyTorch"
FLOOR = "its matrix products alone"


class StockModel(linen.Module):
    """The model from stock Flax layers alone."""

    width: int

    @linen.compact
    def __call__(self, items: Any, query: Any, mask: Any) -> Any:
        items = linen.gelu(linen.Dense(self.width)(items))
        items = linen.gelu(linen.Dense(self.width)(items))
        query = linen.gelu(linen.Dense(self.width)(query))
        query = linen.gelu(linen.Dense(self.width)(query))
        attention = linen.MultiHeadDotProductAttention(num_heads=1, qkv_features=self.width)
        out = attention(query[:, None, :], items, items, mask=mask[:, None, None, :])[:, 0]
        out = linen.gelu(linen.Dense(self.width)(out))
        return linen.Dense(CLASSES)(out)


def stock_step(task: MaxRetrieval, config: Config) -> tuple[Any, Callable[[Any, Batch], tuple[Any, Any]]]:
    """Parameters and optimizer state of the stock model, and its training step."""
    model, optimizer = StockModel(task.width), build_run(config).optimizer
    items, query = jnp.ones((1, task.max_items, FEATURES)), jnp.ones((1, 1))
    parameters = model.init(jax.random.key(0), items, query, jnp.ones((1, task.max_items), bool))

    def loss(parameters: Any, batch: Batch) -> Any:
        scores: Any = model.apply(parameters, batch.items, batch.query, batch.mask)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()
        return cross_entropy + config.l2 * sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(parameters))

    def step(carry: Any, batch: Batch) -> tuple[Any, Any]:
        parameters, state = carry
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        updates, state = optimizer.update(gradient, state, parameters)
        return (optax.apply_updates(parameters, updates), state), value

    return (parameters, optimizer.init(parameters)), step


def notebook() -> Callable[[], float]:
    """One step of the notebook's algorithm."""
    config, task = Config(), MaxRetrieval()
    carry, step = stock_step(task, config)
    jitted = jax.jit(step)
    drawn = sample(jax.random.key(0), task.batch, task.max_items, jnp.array([task.max_items]))
    more = NOTEBOOK_ITEMS - task.max_items
    items = jnp.pad(drawn.items, ((0, 0), (0, more), (0, 0)), constant_values=-1)
    batch = drawn._replace(items=items, mask=jnp.pad(drawn.mask, ((0, 0), (0, more))))

    def run() -> Any:
        nonlocal batch
        order = jax.random.permutation(jax.random.key(1), task.batch)
        batch = jax.tree.map(lambda leaf: leaf[order], batch)
        return jitted(carry, batch)

    return timed(run)


def plain_port(steps: int = 100) -> Callable[[], float]:
    """Steps of the plain port in one scan, which draws their batches as ours does."""
    config, task = Config(), MaxRetrieval()
    carry, step = stock_step(task, config)

    def drawn_step(carry: Any, index: Any) -> tuple[Any, Any]:
        return step(carry, task.training_batch(jnp.int32(0), index))

    scan = jax.jit(lambda carry: jax.lax.scan(drawn_step, carry, jnp.arange(steps)))
    return timed(lambda: scan(carry), steps)


def with_torch(steps: int = 20) -> Callable[[], float]:
    """Steps of the same model in PyTorch, each on a batch drawn anew."""
    torch = import_module("torch")
    config, task = Config(), MaxRetrieval()
    nn, w = torch.nn, task.width
    gelu = nn.GELU(approximate="tanh")
    embed_items = nn.Sequential(nn.Linear(FEATURES, w), gelu, nn.Linear(w, w), gelu)
    embed_query = nn.Sequential(nn.Linear(1, w), gelu, nn.Linear(w, w), gelu)
    attention, read = (
        nn.MultiheadAttention(w, 1, batch_first=True),
        nn.Sequential(nn.Linear(w, w), gelu, nn.Linear(w, CLASSES)),
    )
    modules = nn.ModuleList([embed_items, embed_query, attention, read])
    optimizer = torch.optim.Adam(modules.parameters(), lr=config.learning_rate)

    def step() -> None:
        rho, kappa = torch.rand(task.batch, task.max_items), torch.randint(CLASSES, (task.batch, task.max_items))
        length = int(torch.randint(task.min_items, task.max_items + 1, ()))
        hidden_items = torch.arange(task.max_items).expand(task.batch, -1) >= length
        answer = kappa.gather(1, rho.masked_fill(hidden_items, -1).argmax(1, keepdim=True))[:, 0]
        items = embed_items(torch.cat([rho[..., None], nn.functional.one_hot(kappa, CLASSES)], -1))
        query = embed_query(torch.rand(task.batch, 1))[:, None]
        out = attention(query, items, items, key_padding_mask=hidden_items, need_weights=False)[0][:, 0]
        penalty = sum((leaf**2).sum() for leaf in modules.parameters())
        loss = nn.functional.cross_entropy(read(out), answer) + config.l2 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return timed(lambda: [step() for _ in range(steps)] and None, steps)


def floor() -> Callable[[], float]:
    """The multiply-adds of a step alone."""
    return products_alone(mean_multiply_adds(MaxRetrieval()))


def ours() -> Callable[[], float]:
    """A chunk of steps of one seed by the loop of train.py: half a second, as a turn of the plain port takes."""
    one_device_per_core()
    config = Config()
    run = build_run(config)
    state, train_chunk = run.initial_state(), training.chunk_trainer(run)
    return timed(lambda: train_chunk(state, 0, config.chunk), config.chunk)


CONTENDERS: dict[str, Callable[[], Callable[[], float]]] = {
    OURS: ours,
    NOTEBOOK: notebook,
    PLAIN: plain_port,
    TORCH: with_torch,
    FLOOR: floor,
}


def measure(quick: bool) -> list[Result]:
    """A training step of ours against all peers. Prints its multiply-adds, and the memory of two contenders."""
    names = [name for name in CONTENDERS if name != TORCH or find_spec("torch")]
    if TORCH not in names:
        print("PyTorch is not installed, so it is left out")
    print(
        f"a step has {mean_multiply_adds(MaxRetrieval()) / 1e6:.1f} million multiply-adds, on average over the lengths"
    )
    seconds, peaks = processes_in_turn("benchmarks.training", names, 3 if quick else 15)
    for name in (OURS, NOTEBOOK):
        print(f"{name}: {peaks[name] / 1e9:.2f} GB of memory at most, with the libraries")
    return results_against("a training step of one seed", OURS, seconds, "s per step")


if __name__ == "__main__":
    contest(measure, CONTENDERS, __doc__)
