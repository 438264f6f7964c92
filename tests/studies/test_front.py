"""The front of facts found against loss of text: its counts, and the study on a small random model."""

import dataclasses
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats

from softmax_jax.experiment.language_models.decoder import hidden
from softmax_jax.experiment.language_models.model import DecoderModel
from softmax_jax.experiment.language_models.needles import make_needles
from softmax_jax.experiment.language_models.temperatures import by_temperature, read_and_ask
from softmax_jax.refusal import Refusal
from studies import front
from studies.front import LEARNED, ONE_BETA, PERMUTED, SOFTMAX, Arguments, Study
from studies.front_tables import (
    cells_frame,
    front_chart,
    front_table,
    significance_frame,
    theta_chart,
    theta_frame,
)
from tests.experiment.language_models.plain_llama import tiny_arrays
from tests.experiment.language_models.test_decoder import SIZES, TOKENS, as_parameters

NUMBERS: dict[str, int] = {}


class Words(DecoderModel):
    """A model whose tokens are words."""

    def encode(self, text):
        return np.array([NUMBERS.setdefault(word, len(NUMBERS)) for word in text.split()], np.int32)


def answers_of(kind, seed, budget, right):
    rows = [(kind, seed, budget, 512, "prose 0", question, int(each), 1.0) for question, each in enumerate(right)]
    return pl.DataFrame(rows, front.COLUMNS["answers"], orient="row")


def losses_of(kind, budget, *losses):
    rows = [(kind, 0, budget, "prose", passage, loss) for passage, loss in enumerate(losses)]
    return pl.DataFrame(rows, front.COLUMNS["losses"], orient="row")


def test_a_cell_counts_what_is_gained_and_lost_and_what_text_costs():
    right = {SOFTMAX: "1100000000", LEARNED: "1011111110", PERMUTED: "1100000000"}
    answers = pl.concat(answers_of(kind, 0, 0.01 * (kind != SOFTMAX), map(int, each)) for kind, each in right.items())
    losses = pl.concat([losses_of(SOFTMAX, 0.0, 2.0, 4.0), losses_of(LEARNED, 0.01, 2.01, 4.02)])
    learned, permuted = cells_frame(answers, losses).to_dicts()
    assert [learned[name] for name in ("asked", "found", "of_softmax", "gained", "lost", "net")] == [10, 8, 2, 7, 1, 6]
    np.testing.assert_allclose([learned["p"], learned["cost"]], [18 / 256, 0.5])
    assert (permuted["net"], permuted["p"], permuted["cost"]) == (0, 1.0, None)
    assert significance_frame(answers).rows() == [(0.01, 512, None, None, None)]  # one text, one seed


def test_gains_are_tested_over_texts_and_over_seeds_with_a_correction_for_all_settings():
    columns, gains = front.COLUMNS["answers"], np.array([[3, 4, 5, 4], [3, 4, 3, 7]])  # of eight facts: seeds by texts
    rows = [(SOFTMAX, 0, 0.0, 512, text, fact, 0, 2.0) for text in range(4) for fact in range(8)]
    for (seed, text), gain in np.ndenumerate(gains):
        for budget in (0.01, 0.04):
            facts = [(LEARNED, seed, budget, 512, text, fact, int(fact < gain), 1.0 + 0.1 * text) for fact in range(8)]
            rows.extend(facts)
    tests = significance_frame(pl.DataFrame(rows, columns, orient="row"))
    differences = gains.mean(0) / 8, 0.1 * np.arange(4) - 1, gains.mean(1) / 8
    texts, loss, seeds = (cast(Any, scipy.stats.ttest_1samp(each, 0)).pvalue for each in differences)
    np.testing.assert_allclose(tests.filter(budget=0.01).row(0)[2:], [2 * texts, 2 * loss, 2 * seeds])


def test_each_fact_of_a_text_has_its_question_and_is_no_text():
    model, filler = Words("words", {}, SIZES, cast(Any, None)), np.arange(1000, 1500, dtype=np.int32)
    made = make_needles(model, filler, 120, 4, 0, 8, front.WORDS, front.NAMES)
    for tokens, told, questions, answers in zip(made.tokens, made.told, made.questions, made.answers):
        facts = tokens[told][: -made.question].reshape(8, -1)
        asked = np.column_stack([questions, made.candidates[answers]])
        assert {tuple(fact[: made.question + 1]) for fact in facts} == set(map(tuple, asked))
        assert (tokens[~told] >= 1000).all()
        np.testing.assert_array_equal(tokens[-made.question :], questions[0])
    np.testing.assert_array_equal(made.answers[:, 0], made.answer)


@pytest.mark.full
def test_a_question_that_follows_a_kept_text_is_that_of_the_whole_text():
    parameters = as_parameters(tiny_arrays(50))
    log_theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
    questions = jnp.asarray([TOKENS[:5], TOKENS[7:12]])
    _, asked = read_and_ask(parameters, SIZES, jnp.asarray(TOKENS), questions, log_theta)
    for question, state in zip(questions, asked):
        whole = jnp.concatenate([jnp.asarray(TOKENS), question])
        np.testing.assert_allclose(state, hidden(parameters, SIZES, whole, by_temperature, log_theta)[0][-1], atol=1e-5)


@pytest.mark.full
def test_the_study_computes_its_cells_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    words = " ".join(f"w{place % 60}" for place in range(2400))
    (tmp_path / "a.txt").write_text(words)
    (tmp_path / "b.txt").write_text(words[::-1])
    model = Words("words", as_parameters(tiny_arrays(400)), dataclasses.replace(SIZES, context=256), cast(Any, None))
    monkeypatch.setattr(front, "load", lambda name: model)
    monkeypatch.setattr(Study, "units", lambda study, units=Study.units: list(units(study))[:16])  # to one β at 1 %
    arguments = Arguments(texts=(tmp_path / "a.txt", tmp_path / "b.txt"), output=tmp_path / "cells", quick=True)
    front.study(arguments)
    assert "FAILED" not in capsys.readouterr().out
    (tmp_path / "cells" / "losses_learned_0_0.04.csv").unlink()
    front.study(arguments)
    assert "1 of 16 parts to compute" in capsys.readouterr().out
    with pytest.raises(Refusal, match="has cells of another model, other texts or --quick: choose another --output"):
        front.study(dataclasses.replace(arguments, quick=False))
    front.study(dataclasses.replace(arguments, collect=tmp_path / "data"))
    theta, shares, losses, answers = (pl.read_csv(tmp_path / "data" / f"{kind}.csv") for kind in front.COLUMNS)
    cells = cells_frame(answers, losses)
    assert cells.group_by("kind").agg(pl.sum("asked")).sort("kind").rows() == [
        (LEARNED, 32),
        (ONE_BETA, 16),
        (PERMUTED, 32),
    ]
    directions = [theta.filter(kind=LEARNED)["log_theta"], theta.filter(kind=ONE_BETA)["log_theta"]]
    assert directions[0].n_unique() > 1
    assert directions[1].n_unique() == 1
    assert front_table(answers, losses).count("\n") == 3
    assert "θ learned" in front_chart(cells, "title").to_json()
    assert "log_theta" in theta_chart(theta_frame(theta, shares, 0.01), "title").to_json()
