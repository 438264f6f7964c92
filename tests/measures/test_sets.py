import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.measures.sets import fresh_batches, numbered_key, on_fresh_sets
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

SUM_TO_ONE = [name for name, method in METHODS.items() if getattr(method.map, "sums_to_one", False)]


def sums(model, normalizers, batch):
    """The sums of the weights, in one program with the model that makes the logits."""
    _, logits = model.encode(batch.items, batch.query)
    return jnp.stack([weigh(logits, where=batch.mask).sum(-1) for weigh in normalizers], 1)


@pytest.mark.full
@pytest.mark.parametrize("names", [["hardmax"], SUM_TO_ONE], ids=len)
def test_weights_sum_to_one_in_one_program_with_the_logits(names):
    # The compiler fuses the last product of the logits with what comes after it. In this program the largest logit
    # less the maximum of its row is then not 0 in half of the rows, so a hardmax by differences gives them no weight.
    config, parameters = load_checkpoint(SHIPPED / "paper")
    two = jax.tree.map(lambda leaf: leaf[:2], parameters)
    sampled = {"key": jax.random.key(0), "seeds": config.all_seeds[:2], "items": 16, "sets": 64}
    total = on_fresh_sets(sums, config.task, two, tuple(map(normalizer, names)), **sampled)
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_every_number_of_a_key_draws_other_sets_and_0_the_usual_ones():
    usual, *others = (
        jax.random.key_data(fresh_batches(MaxRetrieval(), (0, 1), 16, 4, key).keys)
        for key in (None, *map(numbered_key, (0, 1, 2**31 - 1)))
    )
    assert np.array_equal(others[0], usual)
    assert len({one.tobytes() for one in map(np.asarray, others)}) == 3
