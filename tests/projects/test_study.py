import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx

from projects.clrs_text import study
from projects.clrs_text.answers import ROW
from projects.clrs_text.task import ClrsText
from softmax_jax.measures.evaluation import set_keys
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.numbers import with_numbers
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.training.config import Config, changed
from softmax_jax.training.trainer import build_model
from studies.common import start

TASK = ClrsText(algorithms=("minimum",), lengths=(4, 6), sets=1, hidden=16, heads=2, layers=2)


def drawn(task=TASK, n=6, sets=5):
    (keys,) = set_keys([0], n, sets)
    batch = drawn_from(task, keys, n)
    return batch, study.source_of(task, batch, study.places_of(task, keys, n)[:, 0])


def drawn_from(task, keys, n):
    return jax.tree.map(lambda leaf: leaf[:, 0], jax.vmap(lambda key: task.test_batch(key, n, 1))(keys))


@pytest.mark.full
@pytest.mark.parametrize("tokenizer", ["number", "character"])
def test_the_source_is_the_smallest_number_of_the_question(tokenizer):
    task = dataclasses.replace(TASK, tokenizer=tokenizer)
    batch, sources = drawn(task)
    for tokens, there, source in zip(*map(np.asarray, (batch.tokens[:, 0], batch.text[:, 0] >= 0, sources))):
        question = task.vocabulary.decode(tokens[there].tolist())
        assert question.startswith("minimum:\nkey: [")
        numbers = question[question.index("[") + 1 : question.index("]")].split()
        assert task.vocabulary.decode(tokens[source].tolist()) == min(numbers, key=float)


@pytest.mark.full
def test_answers_that_training_has_are_those_of_the_test_sets():
    n, sets = 9, 25
    frame = pl.DataFrame([("minimum", "softmax", n, 3, [True] * sets)], ROW, orient="row")
    batch = drawn_from(TASK, set_keys([3], n, sets)[0], n)
    (seen,) = study.with_seen(frame, TASK)["seen"].to_list()
    assert seen == (batch.answer[:, 0] < 6).tolist()
    assert 0 < sum(seen) < sets


@pytest.mark.full
def test_what_heads_see_is_what_attention_weighs():
    (batch, source), model = drawn(), TASK.build("softmax", nnx.Rngs(0))
    seen = study.seen_from_answers(model, batch, source)
    assert [entropy.shape for entropy, _ in seen] == [(2,), (2,)]
    # The first layer, by hand.
    block, tokens = model.blocks[0], batch.tokens[:, 0]
    hidden = block.attention_in(block.attention_norm(model.vectors()[tokens]))
    query, key, _ = jnp.moveaxis(hidden.reshape(5, -1, 3, 2, 8), 2, 0)
    at = int(batch.read[0, 0])
    logits = jnp.einsum("shf,skhf->shk", query[:, at], key[:, : at + 1]) / jnp.sqrt(8.0)
    weights = jax.nn.softmax(logits)
    entropy = -(weights * jnp.log(weights)).sum(-1).mean(0)
    np.testing.assert_allclose(seen[0][0], entropy, atol=1e-4)
    place = 1 + batch.answer[:, 0]  # behind the beginning of the text; the token of a whole number is that number
    of_source = jnp.stack([row[:, index] for row, index in zip(weights, place)])
    np.testing.assert_allclose(seen[0][1], 100 * of_source.mean(0), atol=1e-3)


@pytest.mark.full
def test_a_refit_lowers_the_loss_of_its_model(monkeypatch):
    monkeypatch.setattr(study, "REFIT_STEPS", 10)
    config = Config(TASK, steps=1, seeds=1)
    structure, initialize = build_model(TASK)
    parameters = initialize(jax.random.key(0))
    base = Normalizer(jax.nn.softmax, EntropyPolynomial((0.0, 0.0, 1.0), 0.0, 0.25, (0.0, 2.0)))
    numbers = study.refitted_numbers(config, jax.tree.map(lambda leaf: leaf[None], parameters), base)
    batch = TASK.training_batch(jnp.int32(0), jnp.int32(1))
    losses = [
        TASK.loss(TASK.scores(nnx.merge(structure, parameters), batch, None, with_numbers(base, found)), batch)
        for found in ({}, numbers)
    ]
    assert losses[1] < losses[0]


def answers(cells):
    """Frames as the study makes them, of ten sets at each of two lengths."""
    rows = [
        (algorithm, name, n, 0, [index < right for index in range(10)], regime)
        for (algorithm, regime, name), right in cells.items()
        for n in (4, 64)
    ]
    return pl.DataFrame(rows, ["algorithm", "normalizer", "n", "seed", "right", "regime"], orient="row")


CELLS = {
    ("minimum", study.SWAPPED, "softmax"): 10,
    ("minimum", study.SWAPPED, "adaptive"): 0,
    ("minimum", study.TUNED, "softmax"): 9,
    ("minimum", study.TUNED, "adaptive"): 9,
    ("insertion_sort", study.SWAPPED, "softmax"): 1,
    ("insertion_sort", study.TUNED, "softmax"): 1,
}


def test_regimes_are_compared_with_softmax_in_the_same_regime():
    summary = study.summarize(answers(CELLS))
    swapped, tuned = (summary.filter(regime=regime, normalizer="adaptive", n=64) for regime in ("swapped", "tuned"))
    assert swapped["accuracy"].item() == 0
    assert swapped["p"].item() < 0.05
    assert tuned["p"].item() == 1


@pytest.mark.full
def test_beyond_training_answers_that_it_has_are_counted_apart():
    frame = answers(CELLS).with_columns(seen=pl.lit([False] * 4 + [True] * 6))
    frame = frame.with_columns(right=pl.lit([False] * 3 + [True] * 4 + [False] * 3))
    shares = study.seen_shares(frame, study.summarize(answers(CELLS)))
    assert shares.rows() == [("minimum", 64, 60.0, 50.0, 25.0)]


def test_two_models_are_two_samples():
    gains = {("softmax", 0): 20.0, ("softmax", 1): 12.0, ("adaptive", 0): 33.6, ("adaptive", 1): 39.2}
    rows = [("insertion_sort", name, 64, seed, right, study.TUNED) for (name, seed), right in gains.items()]
    frame = pl.DataFrame(rows, ["algorithm", "normalizer", "n", "seed", "accuracy", "regime"], orient="row")
    (row,) = study.models_table(frame).splitlines()[2:]
    assert row == "| adaptive temperature | 64 | +13.6, +27.2 | +20.4 | 0.20 | 96 |"


@pytest.mark.full
@pytest.mark.parametrize("regimes", [("swapped", "tuned"), ("throughout",)])
def test_the_regimes_of_a_seed(tmp_path, regimes):
    asked = study.Arguments(regimes=regimes, workdir=tmp_path)
    runs = {(regime, name): config for regime, name, config, _ in asked.runs(1)}
    base = runs[study.SWAPPED, "softmax"]
    assert base.all_seeds == [1]
    if study.TUNED in regimes:
        assert {name for regime, name in runs if regime == study.TUNED} == {"softmax", "adaptive", "ssmax"}
        assert runs[study.TUNED, "adaptive"].steps == base.steps // 10
        assert runs[study.TUNED, "adaptive"].start_from == str(tmp_path / "softmax_seed_1")
    else:
        assert runs[study.THROUGHOUT, "ssmax"] == changed(base, normalizer="ssmax")


@pytest.mark.full
def test_models_of_other_settings_have_directories_of_their_own(tmp_path):
    settings = [{}, {"steps": 300}, {"tokenizer": "character"}, {"algorithms": ("minimum",)}]
    asked = [study.Arguments(workdir=tmp_path, **one) for one in settings]
    assert len({directory for one in asked for *_, directory in one.runs(0)}) == sum(len([*a.runs(0)]) for a in asked)
    (_, _, config, _), *_ = asked[1].runs(0)
    assert config.steps == 300


@pytest.mark.slow
def test_the_study_trains_tests_and_draws(tmp_path, monkeypatch, capsys):
    preset = study.load_preset("clrs_text")
    settings = {"algorithms": ("minimum",), "lengths": (4, 6), "sets": 1, "hidden": 16, "heads": 2, "layers": 1}
    settings |= {"schedule": "constant_schedule"}
    small = changed(preset, steps=20, chunk=2, **settings)
    monkeypatch.setattr(study, "load_preset", lambda name: small)
    monkeypatch.setattr(study, "HEAD_LENGTHS", (4, 6))
    monkeypatch.setattr(study, "lengths_of", lambda task, asked: {"minimum": (4, 6)})
    arguments = ["--algorithms", "minimum", "--normalizers", "softmax", "ssmax", "--seeds", "1", "--sets", "25"]
    monkeypatch.setattr(
        "sys.argv", ["clrs_text", *arguments, "--output", str(tmp_path), "--workdir", str(tmp_path / "runs")]
    )
    start(study.Arguments, "", study.study)
    regimes = pl.read_csv(tmp_path / "regimes.csv")
    assert regimes.height == 2 * 2 * 2  # regimes, normalizers, lengths
    assert pl.read_csv(tmp_path / "heads.csv").height == 2 * 1 * 2
    assert (tmp_path / "heads.png").is_file()
    first = (tmp_path / "regimes.csv").read_bytes()
    capsys.readouterr()
    start(study.Arguments, "", study.study)  # all is there
    assert (tmp_path / "regimes.csv").read_bytes() == first
