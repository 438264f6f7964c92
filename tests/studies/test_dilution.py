"""Rank and dilution: the four classes of a miss and the score of a head on hand-made rows, and the readers."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx

from softmax_jax.experiment.language_models.decoder import hidden
from softmax_jax.experiment.language_models.model import DecoderModel
from softmax_jax.experiment.tasks.retrieval import CODE, MultiQuery
from softmax_jax.experiment.training.run import build_model
from softmax_jax.refusal import Refusal
from studies import dilution
from studies.clrs_text.task import ClrsText
from studies.dilution import Arguments, classes_of, largest_heads, trained_reader
from studies.dilution_readers import (
    HELPS,
    Asked,
    Count,
    Facts,
    Items,
    ask_clrs,
    ask_decoder,
    ask_transformer,
    change,
    draw_facts,
    draw_instances,
    draw_sequence,
    largest_and_weight,
    written,
)
from studies.dilution_tables import CLASSES, correlations, learned, points, predicted_share, totals
from studies.front import NAMES, WORDS
from studies.head_numbers import head_numbers
from tests.experiment.language_models.plain_llama import tiny_arrays
from tests.experiment.language_models.test_decoder import SIZES, TOKENS, as_parameters

ROWS = {
    "rank": [0.3, 0.6, 0.1],
    "dilution": [0.4, 0.3, 0.3],
    "both": [0.3, 0.4, 0.3],
    "neither": [0.5, 0.3, 0.2],
}
"""Weights of hand-made rows, of which the first entry is asked for, by the class of a miss."""


def asked_of(rows):
    """What heads of one layer do in these rows, an array (questions, heads, entries)."""
    rows = np.array(rows)[:, None]
    return Asked(np.zeros((1, len(rows)), bool), rows.max(-1), rows[..., 0], rows[..., 0])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ROWS)
def test_a_miss_is_put_down_to_rank_to_dilution_to_both_or_to_neither(name):
    classes = classes_of(asked_of([[ROWS[name]]]), np.ones((1, 1)))
    assert {each: flags.tolist() for each, flags in classes.items()} == {each: [each == name] for each in CLASSES}


def test_heads_that_write_more_decide_the_class_of_a_miss():
    asked = asked_of([[ROWS["rank"], ROWS["dilution"], ROWS["dilution"]]])
    for shares, name in {(1.0, 2.0, 2.0): "dilution", (5.0, 2.0, 2.0): "rank", (0.0, 1.0, 0.0): "dilution"}.items():
        assert classes_of(asked, np.array([shares]))[name].all(), shares
    np.testing.assert_array_equal(largest_heads(np.array([[3.0, -1.0], [5.0, 4.0]]), 2), [[0, 0], [1, 1]])


def test_the_score_of_a_head_is_what_its_value_adds_to_the_logit():
    random = np.random.default_rng(0)
    u, out, value = random.normal(size=5), random.normal(size=(3, 2, 5)), random.normal(size=(3, 2))
    by_hand = [sum(u[w] * out[h, s, w] * value[h, s] for w in range(5) for s in range(2)) for h in range(3)]
    given = (jnp.asarray(array, jnp.float32) for array in (u, out, value))
    np.testing.assert_allclose(written(*given), by_hand, rtol=1e-5)


class Words(DecoderModel):
    """A model whose tokens are words; all others of a text are one."""

    def encode(self, text):
        known = {word: place for place, word in enumerate(f"The secret word of is . {WORDS} {NAMES}".split())}
        return np.array([known.get(word, 99) for word in text.replace(".", " .").split()], np.int32)


@pytest.mark.full
@pytest.mark.parametrize("near", [False, True])
def test_facts_of_near_copies_share_their_names_in_other_pairs(near):
    model, filler = Words("words", {}, SIZES, cast(Any, None)), np.arange(1000, 1400, dtype=np.int32)
    facts = jax.tree.map(np.asarray, draw_facts(model, filler, 200, 0, near, WORDS, NAMES))
    assert facts.tokens.shape == (200,)
    np.testing.assert_array_equal(facts.tokens[facts.places], facts.candidates[facts.answers])
    asked = np.stack([facts.tokens[place - facts.questions.shape[1] : place] for place in facts.places])
    np.testing.assert_array_equal(asked, facts.questions)
    pairs = facts.questions[:, 4:6]
    assert len(set(map(tuple, pairs))) == len(set(facts.answers)) == 8
    assert [len(set(names)) for names in pairs.T] == ([3, 3] if near else [8, 8])
    with pytest.raises(Refusal, match="the filler has 100 tokens: it must have more than 200; give a longer text"):
        draw_facts(model, filler[:100], 200, 0, near, WORDS, NAMES)


def stacked(*changes):
    return jax.tree.map(lambda *each: jnp.stack(each), *changes)


@pytest.mark.full
def test_the_decoder_scores_heads_by_what_they_write_and_rank_puts_the_answer_first():
    parameters, plain = as_parameters(tiny_arrays(50)), head_numbers((2, 4))
    facts = Facts(*map(jnp.asarray, (TOKENS[:20], TOKENS[[[3, 4], [8, 9]]], [5, 10], [0, 1], TOKENS[[5, 10, 12]])))  # pyright: ignore[reportArgumentType]
    masks = [np.ones((2, 4), np.float32), np.eye(2, 4, dtype=np.float32)]
    asked = ask_decoder(parameters, facts, plain, stacked(*(change("rank", mask, 8) for mask in masks)), SIZES)
    assert asked.right.shape == (2, 2)
    cache = hidden(parameters, SIZES, facts.tokens)[1]
    np.testing.assert_array_less(asked.weight, np.asarray(asked.largest) + 1e-6)
    unembed = np.asarray(parameters["embed"])[facts.candidates] * np.asarray(parameters["norm"])
    direction = unembed[1] - unembed.mean(0)
    for layer, head in np.ndindex(2, 4):  # four query heads share two key heads
        out = parameters["layers"]["out"][layer][:, 8 * head : 8 * head + 8]
        value = cache.value[layer, 10, head // 2]
        expected = asked.weight[1, layer, head] * (direction @ (out @ value))
        np.testing.assert_allclose(asked.write[1, layer, head], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.full
def test_the_transformer_answers_as_the_model_does_and_its_target_is_the_item_asked_for():
    task = MultiQuery(length=12, queries=4, hidden=16, heads=2)
    structure, initialize = build_model(task)
    parameters = initialize(jax.random.key(0))
    items = draw_sequence(task, 12, jax.random.key(1))
    np.testing.assert_array_equal(items.inputs[items.needles.argmax(1), 32:42].argmax(1), items.answers)
    assert not np.any(np.asarray(items.needles) & np.asarray(items.others))
    every = np.ones((2, 2), np.float32)
    changes = stacked(*(change(name, every, 16) for name in ("none", *HELPS)))
    asked = ask_transformer(parameters, items, head_numbers((2, 2)), changes, task)

    scores = task.answers(nnx.merge(structure, parameters)(items.inputs[None]))[0]
    np.testing.assert_array_equal(asked.right[0], scores.argmax(-1) == items.answers)
    assert asked.right.shape == (7, 4)
    assert asked.write.shape == (4, 2, 2)


@pytest.mark.full
def test_of_several_items_asked_for_the_sum_of_their_weights_counts_and_rank_puts_all_first():
    rows = jnp.array([[[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]])
    needles = jnp.array([[False, True, True, False], [False, False, False, True]])
    largest, weight = largest_and_weight(rows, needles)
    np.testing.assert_allclose(largest, [[0.7, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(weight, [[0.5, 0.1]], rtol=1e-6)
    moved = change("rank", np.ones((1, 1)), 4).weigh(
        jnp.log(rows), jnp.ones((2, 4), bool), Items(None, needles, needles, jnp.zeros(2, int)), 0
    )
    np.testing.assert_allclose(moved[0], [[3 / 12, 4 / 12, 4 / 12, 1 / 12], [0.1, 0.3, 0.2, 0.4]], rtol=1e-5)


@pytest.mark.full
def test_a_query_that_counts_asks_for_the_items_with_its_key():
    task, largest = Count(length=16, queries=4, classes=3), 0
    for seed in range(4):
        key = jax.random.key(seed)
        drawn = task.sequence(key, jnp.int32(12), 16)
        codes = np.asarray(drawn.inputs[:, :CODE])
        counts = [sum(np.array_equal(code, query) for code in codes[:12]) for query in codes[-4:]]
        np.testing.assert_array_equal(drawn.answer, np.minimum(counts, 3) - 1)
        items = draw_sequence(task, 12, key)
        np.testing.assert_array_equal(np.minimum(items.needles.sum(1), 3) - 1, items.answers)
        np.testing.assert_array_equal(items.others.sum(1), items.needles.sum(1))
        largest = max(largest, *counts)
    assert largest > 3


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["minimum", "binary_search"])
def test_the_decoder_of_clrs_text_answers_as_its_task_does_and_its_target_is_the_node_it_names(algorithm):
    task = ClrsText(algorithms=(algorithm,), hidden=16, heads=2, layers=2)
    structure, initialize = build_model(task)
    parameters, key = initialize(jax.random.key(0)), jax.random.key(1)
    items, batch = draw_instances(task, algorithm, 5, key, 4), task.test_batch(key, 5, 4)
    for tokens, needles, answer in zip(items.inputs, items.needles, items.answers):
        words = task.vocabulary.decode(np.asarray(tokens).tolist())
        keys = [float(number) for number in words.split("[")[1].split("]")[0].split()]
        token = task.vocabulary.decode([int(tokens[needles.argmax()])])
        assert float(token) == keys[answer]
    every = np.ones((2, 2), np.float32)
    asked = ask_clrs(parameters, items, head_numbers((2, 2)), stacked(change("none", every, 5)), task)
    scores = task.scores(nnx.merge(structure, parameters), batch, None)
    np.testing.assert_array_equal(asked.right[0], scores[:, 0].argmax(-1) == items.answers)
    assert asked.write.shape == (4, 2, 2)


def cells_of(shares):
    """Cells of two families for each pair of a share of dilution and a gain, in four texts of 100 misses."""
    rows = []
    for family, (share, gain) in enumerate(shares):
        for length, text in np.ndindex(2, 4):
            split = {"rank": 100 - share, "dilution": share, "both": 0, "neither": 0}
            row = {"family": f"family {family}", "seed": 0, "length": 32 << length, "text": text, "heads": 1}
            row |= {"asked": 200, "missed": 100, **split, "first": 0.5, "weight": 0.5}
            rows.append(row | {"law_gained": gain + 5 + length, "law_lost": 5})
    return pl.DataFrame(rows)


def test_a_share_that_the_gain_follows_predicts_it_in_families_left_out():
    cells = cells_of([(10, 5), (40, 20), (60, 30), (90, 45)])
    assert totals(cells, 5)["dilution_share"].to_list() == [10, 10, 40, 40, 60, 60, 90, 90]
    frame = points(cells, 5)
    assert frame["law"].to_list() == [5, 6, 20, 21, 30, 31, 45, 46]
    assert predicted_share(frame, "share") > 0.99
    assert predicted_share(frame.with_columns(wrong=pl.lit([1.0, 2, 2, 1, 1, 2, 2, 1]).explode()), "wrong") < 0.1
    assert np.nanmin(correlations(cells, 5, 20)) > 0.7  # the two lengths of a family tie in share
    later = cells.with_columns(seed=3)  # those before it did not learn
    np.testing.assert_array_equal(correlations(later, 5, 20), correlations(cells, 5, 20))


def test_a_model_that_did_not_learn_counts_at_no_length():
    cells = cells_of([(10, 5)] * 3)
    family, length = pl.col("family"), pl.col("length")
    renamed = family.replace({"family 0": "count", "family 1": "minimum", "family 2": "facts"})
    trained = pl.when(renamed == "count").then(length // 2).otherwise(length)  # 16 and 32 items
    misses = pl.when(renamed == "count", pl.col("text") == 0).then(90).when(renamed == "count").then(10)
    known = cells.with_columns(family=renamed, length=trained, missed=misses.otherwise(100))
    assert set(learned(known)["family"]) == {"minimum", "facts"}  # 15 % of 16 items are wrong; 31 were not asked
    better = known.with_columns(missed=pl.when(pl.col("text") == 0).then(20).otherwise("missed"))
    assert set(learned(better)["family"]) == {"count", "minimum", "facts"}


@pytest.mark.rare
def test_the_quick_study_computes_its_cells_and_goes_on(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(dilution, "trained_reader", lambda *given: dataclasses.replace(trained_reader(*given), texts=1))
    arguments = Arguments(output=tmp_path / "run", quick=True)
    dilution.study(arguments)
    assert "FAILED" not in capsys.readouterr().out
    (tmp_path / "run" / "cells_paper_0_64.csv").unlink()
    dilution.study(arguments)
    assert "1 of 21 parts to compute" in capsys.readouterr().out
    with pytest.raises(Refusal, match="has cells of other texts or --quick: choose another --output"):
        dilution.study(dataclasses.replace(arguments, quick=False))
    dilution.study(dataclasses.replace(arguments, collect=tmp_path / "data"))
    cells = pl.read_csv(tmp_path / "data" / "cells.csv")
    assert cells["family"].n_unique() == 7
    assert (cells.select(pl.sum_horizontal(*CLASSES)).to_series() == cells["missed"]).all()
