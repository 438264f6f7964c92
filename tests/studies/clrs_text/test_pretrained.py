"""The tuning of a pretrained model, on a tiny one with random arrays."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import softmax_jax as sj
from softmax_jax.experiment.language_models import decoder
from softmax_jax.experiment.language_models.decoder import Sizes, hidden, scores
from softmax_jax.experiment.language_models.model import DecoderModel
from softmax_jax.experiment.tasks.task import sequence_key
from softmax_jax.experiment.training.progress import plain_console
from studies.clrs_text import pretrained, tuned_decoder
from studies.clrs_text.task import ClrsText
from studies.clrs_text.tokens import SplitTokenizer
from tests.experiment.language_models.plain_llama import TINY, tiny_arrays
from tests.experiment.language_models.test_decoder import as_parameters

SIZES = Sizes(TINY["heads"], TINY["key_heads"], context=64)


@functools.cache
def parameters():
    return as_parameters(tiny_arrays(SplitTokenizer((), 3).size))


def numbers_of(regime):
    shape = (TINY["layers"], SIZES.heads, 1, 1)
    return {name: jnp.full(shape, value) for name, value in zip(pretrained.NUMBERS, regime)}


@pytest.mark.full
@pytest.mark.parametrize("block", [decoder.BLOCK, 3])
def test_a_text_in_a_row_is_read_as_if_it_were_alone(block, monkeypatch):
    monkeypatch.setattr(decoder, "BLOCK", block)  # of three, a row takes several, and padding
    width = parameters()["norm"].shape[0]
    sizes = {"hidden": width, "heads": SIZES.heads, "layers": TINY["layers"]}
    task = ClrsText(algorithms=("minimum",), lengths=(3, 4), batch=1, tokenizer="smollm2", **sizes)
    batch = jax.jit(task.training_batch)(jnp.int32(0), jnp.int32(0))
    reader = tuned_decoder.Reader(parameters(), SIZES, numbers_of(pretrained.REGIMES["softmax"]))
    found = np.asarray(task.scores(reader, batch, None)[0])
    for text in range(2):
        slots = np.flatnonzero(np.asarray(batch.text[0]) == text)
        row = np.asarray(batch.tokens[0]).reshape(-1)[slots]
        alone = np.asarray(scores(parameters(), hidden(parameters(), SIZES, jnp.asarray(row))[0]))
        counted = np.asarray((batch.text_index[0] == text) & (batch.weight[0] > 0))
        read = np.searchsorted(slots, np.asarray(batch.read[0])[counted])
        np.testing.assert_allclose(found[counted], alone[read], atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["minimum", "insertion_sort"])
def test_the_number_that_a_digit_is_read_from_is_found(algorithm):
    task = ClrsText(algorithms=(algorithm,), lengths=(3,), tokenizer="smollm2")
    batch = jax.jit(task.test_batch, static_argnums=(1, 2))(jax.random.key(0), 11, 6)
    found = tuned_decoder.numbers_read(batch, task.decimals)
    table = SplitTokenizer((), task.decimals)
    for tokens, taken, rows in zip(np.asarray(batch.tokens)[:, 0], np.asarray(batch.text)[:, 0] >= 0, found):
        question, answer = table.decode(tokens[taken].tolist()).strip().split(":\n")[1:]
        asked = question[question.index("[") + 1 : question.index("]")].split()
        read = [table.decode(tokens[row].tolist()) for row in rows if row.any()]
        if algorithm == "minimum":
            assert read == [asked[int(answer)]] * len(answer)
        else:
            told = answer.strip("[]").split()
            assert told == sorted(asked)
            assert read == [number for number in told for _ in number[2:]]


@pytest.mark.full
def test_the_weight_that_heads_give_a_number_is_that_of_its_tokens(monkeypatch):
    monkeypatch.setattr(tuned_decoder, "SETS_READ", 2)
    asked = pretrained.Arguments(algorithms=("minimum",), lengths=(3, 4), longer=(5,), batch=1)
    programs = object.__new__(pretrained.Programs)
    programs.sizes = SIZES
    programs.task, _ = asked.tasks(SIZES, parameters()["norm"].shape[0], TINY["layers"])
    programs.fixed = parameters()
    trained = {}, numbers_of(pretrained.REGIMES["softmax"])
    found = programs.looks(trained, 3)
    draw = jax.jit(programs.task.test_batch, static_argnums=(1, 2))
    batch = draw(sequence_key(jnp.int32(3)), 4, tuned_decoder.SETS_READ)
    wanted = []
    for tokens, taken, rows in zip(batch.tokens, batch.text, tuned_decoder.numbers_read(batch, 3)):
        here = np.flatnonzero(np.asarray(taken[0]) >= 0)
        probed = sj.probe(lambda one: hidden(parameters(), SIZES, one), also=lambda weights: weights)
        (row,) = np.flatnonzero(rows.any(-1))
        weights = probed(tokens[0, here])[1][0].also[..., row - here[0], :]
        wanted.append(np.asarray(weights)[..., rows[row, here]].sum(-1))
    np.testing.assert_allclose(found, np.mean(wanted, 0), atol=1e-5)


@pytest.mark.rare
def test_a_model_is_tuned_under_every_regime_and_tested(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "load", lambda name: DecoderModel("tiny", parameters(), SIZES, cast(Any, None)))
    monkeypatch.setattr(pretrained, "BLOCK_STEPS", 2)
    monkeypatch.setattr(pretrained, "SAVED_EVERY", 0)
    few = {"lengths": (3,), "longer": (4,), "seeds": 1, "batch": 1, "most_steps": 4, "sets": 25}
    asked = pretrained.Arguments(**few, regimes=("softmax", "ssmax"), workdir=tmp_path)
    pretrained.study(asked)
    answers, heads, parts = (
        pl.read_csv(tmp_path / f"pretrained_{name}.csv", schema_overrides={"right": pl.String})
        for name in ("answers", "heads", "parts")
    )
    assert answers.select("stage", "regime").unique().height == 4  # softmax, swapped in adaptive and ssmax, ssmax
    assert answers.height == 4 * 2 * 2
    assert set(answers["right"].str.len_chars()) == {25}
    assert (heads.filter(regime="softmax").select("constant", "slope", "adaptive").unique().rows()) == [(1, 0, 0)]
    assert heads.filter(regime="ssmax")["slope"].n_unique() > 1
    assert parts.height == (TINY["layers"] + 2) * 2  # at the one length of training
    assert heads["looks"].is_between(0, 1).all()
    learning = pl.read_csv(tmp_path / "pretrained_learning.csv")
    assert learning.filter(regime="ssmax")["step"].to_list() == [2, 4, 6]
    monkeypatch.setattr(pretrained, "tuned", None)  # all is there
    pretrained.study(asked)
    assert pl.read_csv(tmp_path / "pretrained_answers.csv").height == 16
    assert not (tmp_path / "softmax_0").exists()


class StoppedError(Exception):
    """What stops a run."""


class Adding(pretrained.Programs):
    """Programs that add the rates they are given, and are stopped before some step."""

    def __init__(self, stopped_at):
        self.stopped_at = stopped_at

    def start(self):
        return pretrained.State(({"query": (jnp.zeros((1, 1, 1)), jnp.zeros((1, 1, 1)))}, {}), jnp.zeros(2))

    def numbers_of(self, regime):
        return {"slope": jnp.zeros((1, 1, 1, 1))}

    def train(self, state, seed, first, rates, regime):
        if first == self.stopped_at:
            raise StoppedError
        moved = jax.tree.map(lambda number: number + rates.sum(), state.trained)
        return pretrained.State(moved, state.optimizer + first), 0.5, [0.01 * first]


@pytest.mark.parametrize(("steps", "ends", "at"), [(None, 200, 100), (50, 100, 50)])
def test_what_was_stopped_goes_on_to_the_same_model(tmp_path, monkeypatch, steps, ends, at):
    monkeypatch.setattr(pretrained, "SAVED_EVERY", 0)
    monkeypatch.chdir(tmp_path)

    def tuned(workdir, at=None):
        asked = pretrained.Arguments(workdir=Path(workdir))
        return pretrained.tuned(Adding(at), "softmax", 0, asked, steps, plain_console())

    wanted = tuned("whole")
    with pytest.raises(StoppedError):
        tuned("parts", at)
    (tmp_path / "parts" / "softmax_0" / "checkpoints" / f".{at + 50}.softmax_jax-partial").mkdir()  # by a kill
    for _ in range(2):  # the second time all is saved
        found = tuned("parts", 0)
        jax.tree.map(np.testing.assert_array_equal, found[0], wanted[0])
        assert found[1:] == wanted[1:]
        assert found[1] == ends - 50
    assert len(pretrained.step_checkpoints(tmp_path / "parts" / "softmax_0")) == 2


def test_a_directory_goes_on_with_its_own_settings(tmp_path):
    asked = pretrained.Arguments(workdir=tmp_path)
    asked.begin("cpu")
    dataclasses.replace(asked, seeds=5).begin("cpu")
    with pytest.raises(ValueError, match=r"has models of most_steps=400, not 50: choose another --workdir"):
        dataclasses.replace(asked, most_steps=50).begin("cpu")
