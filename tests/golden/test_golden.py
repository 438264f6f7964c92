"""The numbers of fixed keys are those that were kept, so that an upgrade that changes results is seen."""

import json

import jax
import pytest

from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.normalizers.registry import normalizer
from tests.golden import numbers


@pytest.fixture(scope="module")
def state():
    return build_run(numbers.TRAINING).initial_state()


@pytest.fixture(scope="module")
def trainer():
    return chunk_trainer(build_run(numbers.TRAINING))


@pytest.fixture(scope="module")
def found(trainer, state):
    return {"evaluation": numbers.evaluation(), "training": numbers.training(trainer, state)}


@pytest.mark.full
def test_the_numbers_are_those_kept(found):
    kept, said = numbers.kept(jax.__version__)
    print(said)
    assert len(kept["evaluation"]) == 10
    assert len(kept["training"]) == 3
    lines = numbers.differences(found, kept)
    assert not lines, "\n".join([f"not {said}:", *lines, "If this is meant: `python -m tests.golden.write`"])


@pytest.mark.full
def test_a_normalizer_that_is_off_by_a_thousandth_is_seen(found):
    other = normalizer("ssmax", s=1.001 / jax.numpy.log(16.0))
    changed = {"training": found["training"], "evaluation": numbers.evaluation({"ssmax": other})}
    lines = numbers.differences(changed, found)
    assert lines
    assert all(line.startswith("evaluation, normalizer ssmax") for line in lines)


@pytest.mark.full
def test_training_that_starts_a_hundredth_off_is_seen(found, trainer, state):
    off = state._replace(parameters=jax.tree.map(lambda leaf: 1.01 * leaf, state.parameters))
    changed = {"evaluation": found["evaluation"], "training": numbers.training(trainer, off)}
    assert len(numbers.differences(changed, found)) == 3


@pytest.mark.parametrize("change", [lambda value, allowed: value + 1.01 * allowed, lambda value, _: float("nan")])
def test_every_single_number_counts(change):
    kept, _ = numbers.kept(jax.__version__)
    changes = 0
    for part in ("evaluation", "training"):
        for index, row in enumerate(kept[part]):
            for name in row.keys() - {"normalizer", "n", "seed", "steps"}:
                other = json.loads(json.dumps(kept))
                allowed = numbers.allowed(name, row[name])
                other[part][index][name] = change(row[name], allowed)
                (found,) = numbers.differences(other, kept)
                assert f"{name} is" in found
                other[part][index][name] = row[name] - 0.99 * allowed
                assert numbers.differences(other, kept) == []
                changes += 1
    assert changes == 10 * 5 + 3


def test_a_row_that_is_missing_is_seen():
    kept, _ = numbers.kept(jax.__version__)
    fewer = {"evaluation": kept["evaluation"][1:], "training": kept["training"]}
    assert len(numbers.differences(fewer, kept)) == len(numbers.differences(kept, fewer)) == 5


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.10.7", "those kept for jax 0.10"),
        ("0.11.0", "those kept for jax 0.10, as there are none for jax 0.11.0"),
        ("9.0.0", ", as there are none for jax 9.0.0 (`python -m tests.golden.write` keeps them)"),
        ("0.9.1", "those kept for jax 0.10, as there are none for jax 0.9.1"),
    ],
)
def test_a_version_without_numbers_is_compared_with_the_nearest(version, words):
    assert words in numbers.kept(version)[1]
