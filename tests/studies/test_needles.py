"""Numbers of heads, and the oracle of needles, on small random arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import hidden
from studies.head_numbers import FAMILIES, by_numbers, head_numbers, learned_numbers
from studies.needles import Oracle, answer, weigh_with_oracle
from tests.experiment.language_models.plain_llama import TINY, tiny_arrays
from tests.experiment.language_models.test_decoder import SIZES, TOKENS, as_parameters

LOGITS = 3 * jax.random.normal(jax.random.key(0), (2, 3, 8))
VISIBLE = jnp.tril(jnp.ones((3, 8), bool), 5)
SHAPE = (TINY["layers"], TINY["heads"])


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({}, "softmax"),
        ({"beta": 2.0}, "temperature(0.5)"),
        ({"adaptive": 1.0}, "adaptive"),
        ({"beta": 0.0, "s": 0.4}, "ssmax(s=0.4)"),
        ({"beta": 0.0, "s": 0.4, "low": 0.75}, "clipped_ssmax(s=0.4, low=0.75)"),
    ],
)
def test_numbers_of_heads_are_normalizers(numbers, name):
    found = by_numbers(LOGITS, VISIBLE, head_numbers((2,), **numbers))
    np.testing.assert_allclose(found, sj.normalizer(name)(LOGITS, where=VISIBLE[None]), atol=1e-6)


def test_what_is_learned_starts_at_softmax_and_the_first_token_gains_its_factor():
    for family in FAMILIES:
        start = learned_numbers(family, jnp.zeros((1, 2)))
        beta = start.beta + start.s * np.log(512 if family == "s log n" else 8)
        np.testing.assert_allclose(beta, 1, rtol=1e-6)
    plain, doubled = (
        by_numbers(LOGITS, VISIBLE, head_numbers((2,), first=number)) for number in (0.0, float(np.log(2)))
    )
    ratio = doubled / jnp.where(VISIBLE[None], plain, 1)
    np.testing.assert_allclose((ratio[..., 0] / ratio[..., 1]), 2, rtol=1e-5)


@pytest.mark.full
def test_the_oracle_gives_the_answer_the_top_logit_and_its_best_temperature():
    def weights(rank, sharp, last):
        flags = (jnp.full((2,), flag, jnp.float32) for flag in (rank, sharp, last))
        return weigh_with_oracle(
            LOGITS, VISIBLE, (head_numbers((2,)), Oracle(*flags), jnp.arange(LOGITS.shape[-1])[None, None] == 4)
        )

    plain = weights(0, 0, 0)
    np.testing.assert_allclose(plain, by_numbers(LOGITS, VISIBLE, head_numbers((2,))), atol=1e-6)
    ranked, sharp, both = weights(1, 0, 0), weights(0, 1, 0), weights(1, 1, 0)
    np.testing.assert_allclose(ranked[..., 4], plain.max(-1), atol=1e-6)
    np.testing.assert_allclose(jnp.sort(ranked, -1), jnp.sort(plain, -1), atol=1e-6)
    assert bool((sharp[..., 4] >= plain[..., 4] - 1e-6).all())
    assert bool((both[..., 4] > 0.99).all())
    np.testing.assert_allclose(weights(1, 0, 1)[:, :2], plain[:, :2], atol=1e-6)


@pytest.mark.full
def test_an_answer_without_help_is_that_of_the_whole_text():
    parameters, tokens, places = as_parameters(tiny_arrays(50)), jnp.asarray(TOKENS[None]), jnp.array([5], jnp.int32)
    none, candidates = jnp.zeros((1, *SHAPE)), np.arange(10)
    numbers = head_numbers(SHAPE)
    given = {"candidates": candidates, "question": 4, "sizes": SIZES}
    logs, weights = answer(parameters, tokens, places, numbers, Oracle(none, none, none), **given)
    after, _ = hidden(parameters, SIZES, tokens[0])
    scores = after[-1] @ parameters["embed"][:10].T
    np.testing.assert_allclose(logs[0, 0], jax.nn.log_softmax(scores), atol=1e-4)
    assert weights.shape == (1, *SHAPE)
