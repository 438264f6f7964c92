"""However many lengths an evaluation meets, a program is compiled for a bucket of them only."""

from typing import Any

import jax
import numpy as np
import pytest

from softmax_jax.measures import evaluation, sets
from softmax_jax.measures.long_sets import LONGEST_WHOLE
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks.max_retrieval import BLOCK, ITEMS_AT_ONCE, MaxRetrieval
from softmax_jax.training.trainer import build_model

TASK = MaxRetrieval()
bucket = TASK.room


class Compilations:
    """Counts the programs that XLA compiles while it is entered, those of single operations too."""

    def __enter__(self) -> "Compilations":
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.mark.slow
def test_random_lengths_compile_one_program_a_bucket():
    _, initialize = build_model(MaxRetrieval(width=8))
    parameters = jax.vmap(initialize)(jax.random.split(jax.random.key(0), 2))
    named = {name: normalizer(name) for name in ("softmax", "ssmax")}
    programs: Any = sets.for_each_seed

    def measure(lengths):
        measured = evaluation.evaluate(parameters, named, seeds=(0, 1), lengths=lengths, sets=4)
        assert [of_length.n for of_length in measured] == list(lengths)

    before = programs._cache_size()
    # Both lengths of a bucket are measured at the same time, and still it is compiled once.
    with Compilations() as once:
        measure((57, 64))
    with Compilations() as again:
        measure((58, 63))
    assert once.count > 0
    assert again.count == 0
    measure((49,))
    assert programs._cache_size() - before == 2
    random = np.random.default_rng(0)
    with Compilations() as later:
        for _ in range(20):
            measure(tuple(random.integers(49, 65, 2).tolist()))
    assert later.count == 0
    assert programs._cache_size() - before == 2


def test_lengths_of_a_bucket_share_a_program():
    """Its room, and how sets are grouped."""
    most = ITEMS_AT_ONCE
    for items in (*range(1, 4200), 2**14, 2**14 + 1, 2**20 - 1, 2**20):
        room = bucket(items)
        assert items <= room < 1.25 * items + 1
        assert bucket(room) == room
        assert items > LONGEST_WHOLE or room <= LONGEST_WHOLE
        assert room < 4 * BLOCK or room % BLOCK == 0
        assert (most // items).bit_length() == (most // room).bit_length()
    assert len({bucket(items) for items in range(1, 2**14 + 1)}) == 52
    assert {bucket(items) for items in evaluation.LENGTHS} == set(evaluation.LENGTHS)


@pytest.mark.full
def test_padding_changes_nothing_that_is_drawn():
    for items in (57, BLOCK + 60):
        drawn = jax.tree.map(lambda leaf: leaf.reshape(-1), sets.fresh_batches(TASK, (0, 1), items, 2))
        whole, padded = (jax.jit(sets.draw_with_room(TASK, room))(drawn) for room in (items, bucket(items)))
        assert padded.items.shape[1] > items
        assert np.array_equal(padded.items[:, :items], whole.items)
        assert not padded.items[:, items:].any()
        assert np.array_equal(padded.mask.sum(1), drawn.lengths)
        assert np.array_equal(padded.query, whole.query)
        assert np.array_equal(padded.answer, whole.answer)
