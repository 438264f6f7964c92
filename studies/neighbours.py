"""Does attention over a graph disperse? The class of the largest neighbour, trained on degrees of 4 to 16.

    python -m studies.neighbours --page docs/graphs.md

Takes two minutes on 2 cores.

A node has neighbours with a number ρ and one of ten classes, and answers the class of its largest. Each graph has nodes
of all degrees from 4 to 16, whose edges are weighed as segments. Models are trained under softmax, and tested on nodes
of up to 4,096 neighbours under other normalizers, with the same parameters.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
from jaxtyping import Array, Float, Int, Key

import softmax_jax as sj
from softmax_jax.experiment.commands.parse import each_within, within
from softmax_jax.experiment.report import tables
from softmax_jax.experiment.report.tables import with_interval
from studies.common import Options, start

CLASSES, WIDTH = 10, 32
DEGREES = tuple(range(4, 17))
"""Of the nodes of a graph to train on, equally often."""
NORMALIZERS = {
    "softmax": "softmax",
    "adaptive": "adaptive temperature",
    "ssmax": "SSMax, s = 1/log 16",
    "entmax15": "entmax, α = 1.5",
    "hardmax": "hardmax",
}
"""The normalizers of the test, with their names in the table."""
EDGES = 2**17
"""Edges of a graph to test on, so that every degree takes the same memory."""
COLUMNS = {"normalizer": pl.String, "degree": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64, "weight": pl.Float64}
Parameters = dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("neighbours",)

    degrees: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096)
    """Neighbours of a node to test."""
    seeds: int = 5
    """Models."""
    steps: int = 3000
    """Steps of training."""
    nodes: int = 512
    """Nodes to test, per seed and degree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("--degrees", self.degrees, 1, EDGES, 1024)
        within("--seeds", self.seeds, 1, 100, 5)
        within("--steps", self.steps, 1, 10**6, 3000)
        within("--nodes", self.nodes, 1, 2**16, 512)


class Graph(NamedTuple):
    """Edges by their receivers, which ascend."""

    senders: Float[Array, "edges features"]
    """Of each edge: ρ, and the class as a one-hot vector."""
    receivers: Int[np.ndarray, " edges"]
    answers: Int[Array, " nodes"]


def graph_of(key: Key[Array, ""], degrees: Sequence[int]) -> Graph:
    """Returns a graph whose nodes have these degrees."""
    receivers = np.repeat(np.arange(len(degrees)), degrees)
    of_rho, of_classes = jax.random.split(key)
    rho = jax.random.uniform(of_rho, receivers.shape, jnp.float32)
    classes = jax.random.randint(of_classes, receivers.shape, 0, CLASSES)
    largest = sj.segments(rho, receivers, "hardmax", len(degrees), indices_are_sorted=True)
    votes = largest[:, None] * jax.nn.one_hot(classes, CLASSES, dtype=jnp.float32)
    answers = jnp.argmax(jax.ops.segment_sum(votes, receivers, len(degrees)), -1)
    return Graph(jnp.concatenate([rho[:, None], jax.nn.one_hot(classes, CLASSES)], 1), receivers, answers)


def attend(
    parameters: Parameters, normalizer: sj.Normalizer, graph: Graph, nodes: int
) -> tuple[Float[Array, "nodes classes"], Float[Array, " edges"]]:
    """Returns the logits of the answers by a layer of graph attention (GATv2), and the weights of the edges."""
    sent = jax.nn.gelu(graph.senders @ parameters["embed"] + parameters["embed_bias"])
    hidden = jax.nn.leaky_relu(sent @ parameters["key"] + parameters["query"])
    logits = hidden @ parameters["attention"]
    weights = sj.segments(logits, graph.receivers, normalizer, nodes, indices_are_sorted=True)
    messages = weights[:, None] * (sent @ parameters["value"])
    received = jax.ops.segment_sum(messages, graph.receivers, nodes, indices_are_sorted=True)
    return jax.nn.gelu(received) @ parameters["answer"], weights


def initial_parameters(key: Key[Array, ""]) -> Parameters:
    """Returns random parameters."""
    shapes = {
        "embed": (1 + CLASSES, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "attention": (WIDTH,),
        "answer": (WIDTH, CLASSES),
    }
    keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
    matrices = {
        name: jax.random.normal(keys[name], shape, jnp.float32) / shape[0] ** 0.5 for name, shape in shapes.items()
    }
    biases = {name: jnp.zeros(WIDTH, jnp.float32) for name in ("embed_bias", "query")}
    return matrices | biases


@functools.partial(jax.jit, static_argnums=(1, 2))
def train(seeds: Int[Array, " seeds"], steps: int, copies: int = 10) -> Parameters:
    """Returns the parameters of all seeds after so many steps, each on a graph with `copies` nodes of each degree."""
    degrees = DEGREES * copies
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def loss(parameters: Parameters, key: Key[Array, ""]) -> Float[Array, ""]:
        graph = graph_of(key, degrees)
        logits, _ = attend(parameters, sj.normalizer("softmax"), graph, len(degrees))
        return sj.cross_entropy(logits, graph.answers).mean()

    def train_one(seed: Array) -> Parameters:
        key = jax.random.key(seed)

        def step(state: Any, index: Array) -> tuple[Any, None]:
            parameters, moments = state
            gradient = jax.grad(loss)(parameters, jax.random.fold_in(key, index))
            updates, moments = optimizer.update(gradient, moments)
            return (optax.apply_updates(parameters, updates), moments), None

        parameters = initial_parameters(jax.random.fold_in(key, steps))
        state = parameters, optimizer.init(parameters)
        return jax.lax.scan(step, state, jnp.arange(steps, dtype=jnp.int32))[0][0]

    return jax.vmap(train_one)(seeds)


@functools.partial(jax.jit, static_argnums=(2, 3))
def evaluate_model(
    parameters: Parameters, key: Key[Array, ""], degree: int, nodes: int
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Returns by normalizer the share of right answers of a model, and the mean largest weight of a node."""
    at_once = min(nodes, max(EDGES // degree, 1))

    def test_graph(key: Key[Array, ""]) -> dict[str, tuple[Array, Array]]:
        graph = graph_of(key, (degree,) * at_once)
        results = {}
        for name in NORMALIZERS:
            logits, weights = attend(parameters, sj.normalizer(name), graph, at_once)
            results[name] = jnp.argmax(logits, -1) == graph.answers, weights.reshape(at_once, degree).max(-1)
        return results

    results = jax.lax.map(test_graph, jax.random.split(key, -(-nodes // at_once)))
    return jax.tree.map(lambda values: values.ravel()[:nodes].mean(), results)


def measure(arguments: Arguments) -> pl.DataFrame:
    """Returns the accuracy in percent and the largest weight by normalizer, degree and seed."""
    models = train(jnp.arange(arguments.seeds), arguments.steps)
    rows = []
    for degree in arguments.degrees:
        for seed in range(arguments.seeds):
            key = jax.random.fold_in(jax.random.key(2**20 + seed), degree)
            results = evaluate_model(
                {name: arrays[seed] for name, arrays in models.items()}, key, degree, arguments.nodes
            )
            for name, (accuracy, weight) in results.items():
                rows.append((name, degree, seed, 100 * float(accuracy), float(weight)))
    return pl.DataFrame(rows, COLUMNS, orient="row")


def neighbours_table(frame: pl.DataFrame) -> str:
    """Returns the accuracy by normalizer and degree, and softmax's largest weight."""
    degrees = frame["degree"].unique(maintain_order=True).to_list()

    def cells(name: str, column: str, form: str) -> list[str]:
        return [with_interval(frame.filter(normalizer=name, degree=n)[column].to_list(), form) for n in degrees]

    rows = [[label, *cells(name, "accuracy", ".1f")] for name, label in NORMALIZERS.items()]
    rows.append(["softmax's largest weight", *cells("softmax", "weight", ".2f")])
    return tables.markdown_table(["neighbours", *(f"{degree:,}" for degree in degrees)], rows)


def study(arguments: Arguments) -> None:
    """Trains, tests, writes."""
    frame = measure(arguments)
    arguments.write("neighbours", {"accuracy": frame}, {}, {"neighbours": neighbours_table(frame)})


if __name__ == "__main__":
    start(Arguments, __doc__, study)
