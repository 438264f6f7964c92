"""Graph attention of other libraries is swapped as if edited by hand."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.models.zoo import library, normal

pytestmark = pytest.mark.filterwarnings("ignore")
NODES, EDGES = 5, 16
SENDERS, RECEIVERS = jnp.asarray(np.random.default_rng(0).integers(0, NODES, (2, EDGES)), jnp.int32)


@pytest.fixture(autouse=True)
def promotion():
    """What these libraries need of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Graph(NamedTuple):
    """A function of parameters and nodes, with both, and where its library has the softmax over segments."""

    apply: Callable[..., Any]
    parameters: Any
    uses: tuple[str, ...]
    module: str
    softmax: str


def gat() -> Graph:
    """A layer of graph attention after one of attention over all nodes."""
    jraph = library("jraph")

    def apply(parameters, nodes):
        queries, logits = parameters
        nodes = jax.nn.softmax(nodes @ nodes.T) @ nodes
        layer = jraph.GAT(
            lambda x: x @ queries,
            lambda sent, received, _: jax.nn.leaky_relu(jnp.concatenate([sent, received], -1) @ logits),
        )
        sizes = jnp.array([NODES]), jnp.array([EDGES])
        return layer(jraph.GraphsTuple(nodes, None, RECEIVERS, SENDERS, None, *sizes)).nodes

    parameters = normal(8, 8), normal(16, 1, seed=1)
    return Graph(apply, parameters, ("attention", "segments"), "jraph._src.utils", "segment_softmax")


def convolution(name: str, module: str) -> Graph:
    """A layer of jraphx, two heads. GATv2 adds an edge of each node to itself, and hides those that were there."""
    from flax import nnx

    library("jraphx")
    path = f"jraphx.nn.conv.{module}"
    layer = getattr(importlib.import_module(path), name)(8, 4, heads=2, rngs=nnx.Rngs(0))
    structure, parameters, rest = nnx.split(layer, nnx.Param, ...)

    def apply(parameters, nodes):
        return nnx.merge(structure, parameters, rest)(nodes, jnp.stack([SENDERS, RECEIVERS]))

    return Graph(apply, parameters, ("segments",), path, "scatter_softmax")


GRAPHS: dict[str, Callable[[], Graph]] = {
    "jraph GAT": gat,
    "jraphx TransformerConv": functools.partial(convolution, "TransformerConv", "transformer_conv"),
    "jraphx GATv2Conv": functools.partial(convolution, "GATv2Conv", "gatv2_conv"),
    "jraphx GATConv": functools.partial(convolution, "GATConv", "gat_conv"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_attention_is_swapped_as_if_edited_by_hand(name: str):
    graph, nodes = GRAPHS[name](), normal(NODES, 8, seed=2)
    assert tuple(site.use for site in sj.sites(graph.apply)(graph.parameters, nodes)) == graph.uses

    def with_gradient(apply):
        def objective(parameters):
            output = apply(parameters, nodes)
            return jnp.sin(output).sum(), output

        return jax.jit(jax.value_and_grad(objective, has_aux=True))(graph.parameters)

    for normalizer in ("ssmax(s=0.7)", "entmax15"):
        swapped = with_gradient(sj.swap(graph.apply, normalizer, where=lambda site: site.use == "segments"))

        def edited(z, ids: Any = None, number: Any = None, normalizer: str = normalizer, **named: Any):
            number = named.get("num_segments", named.get("dim_size", number))
            return sj.segments(z, named.get("segment_ids", ids), normalizer, number)

        with mock.patch(f"{graph.module}.{graph.softmax}", edited):
            wanted = with_gradient(lambda parameters, nodes: graph.apply(parameters, nodes))
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=2e-6), swapped, wanted)
        assert not np.allclose(swapped[0][1], graph.apply(graph.parameters, nodes), atol=1e-3)
    same = jax.jit(sj.swap(graph.apply, "softmax"))(graph.parameters, nodes)
    np.testing.assert_array_equal(same, jax.jit(graph.apply)(graph.parameters, nodes))
