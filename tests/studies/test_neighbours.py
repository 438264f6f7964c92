import jax
import numpy as np
import pytest

from studies.neighbours import Arguments, graph_of, measure


def test_the_answer_of_a_node_is_the_class_of_its_largest_neighbour():
    graph = graph_of(jax.random.key(0), (3, 1, 7))
    senders = np.asarray(graph.senders)
    for node, answer in enumerate(graph.answers):
        edges = senders[graph.receivers == node]
        assert edges[edges[:, 0].argmax(), 1:].argmax() == answer


@pytest.mark.rare
def test_a_short_run_measures_every_normalizer():
    frame = measure(Arguments(degrees=(4, 8), seeds=2, steps=50, nodes=16))
    assert len(frame) == 5 * 2 * 2
    assert frame.filter(normalizer="hardmax")["weight"].min() == 1
