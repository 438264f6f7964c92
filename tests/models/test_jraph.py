"""Segments stand where jraph normalizes the logits of edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.models.zoo import library, normal

SENDERS, RECEIVERS = jnp.array([0, 1, 2, 3, 4, 0, 2]), jnp.array([1, 1, 1, 1, 0, 3, 3])


@pytest.mark.parametrize("name", ["softmax", "ssmax", "entmax15"])
def test_a_network_attends_by_any_normalizer(name):
    jraph = library("jraph")
    nodes = normal(5, 4)

    def apply(normalize, nodes):
        network = jraph.GraphNetwork(
            lambda edges, sent, received, _: sent,
            lambda nodes, sent, received, _: received,
            attention_logit_fn=lambda edges, sent, received, _: jnp.sum(sent * received, -1, keepdims=True),
            attention_normalize_fn=normalize,
            attention_reduce_fn=lambda edges, weights: edges * weights,
        )
        edges = jnp.ones((7, 1))
        return network(jraph.GraphsTuple(nodes, edges, RECEIVERS, SENDERS, None, jnp.array([5]), jnp.array([7]))).nodes

    actual = jax.jit(functools.partial(apply, functools.partial(sj.segments, normalizer=name)))(nodes)
    if name == "softmax":
        np.testing.assert_allclose(actual, apply(jraph.segment_softmax, nodes), atol=1e-6)
    logits = jnp.sum(nodes[SENDERS] * nodes[RECEIVERS], -1)
    for node in range(5):
        edges = np.flatnonzero(node == RECEIVERS)
        expected = sj.normalizer(name)(logits[edges]) @ nodes[SENDERS[edges]] if edges.size else jnp.zeros(4)
        np.testing.assert_allclose(actual[node], expected, atol=1e-6)
