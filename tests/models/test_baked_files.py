"""Temperatures baked into GGUF files and into checkpoints of transformers, as other programs read them."""

import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.commands.language_model import main
from softmax_jax.experiment.language_models import needles, temperatures
from softmax_jax.experiment.language_models.baking import FACTORS, FileArray, bake
from softmax_jax.experiment.language_models.decoder import hidden, scores
from softmax_jax.experiment.language_models.loading import load
from softmax_jax.experiment.language_models.temperatures import learn_temperatures
from softmax_jax.refusal import Refusal
from tests.experiment.language_models.plain_llama import TINY, tiny_arrays
from tests.models.written import TEXT, scores_of, vocabulary, write_directory, write_gguf

gguf = pytest.importorskip("gguf")

THETA = np.array([[1.0, 0.5, 2.0, 1.3], [0.7, 1.0, 1.0, 3.0]])


def by_theta(logits, visible, theta):
    z = jnp.where(visible[None], logits / theta[:, None, None], -jnp.inf)
    exponentials = jnp.exp(z - z.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def scores_at(model, tokens, theta):
    states, _ = hidden(model.parameters, model.sizes, jnp.asarray(tokens), by_theta, jnp.asarray(theta, jnp.float32))
    return np.asarray(scores(model.parameters, states))


@pytest.mark.parametrize(
    ("file", "architecture", "bound"),
    [("x", "LlamaForCausalLM", 1e-4), ("x.gguf", "llama", 1e-4), ("x.gguf", "qwen2", 1e-4)],
)
def test_the_new_file_under_softmax_is_the_old_one_under_its_temperatures(tmp_path, file, architecture, bound):
    arrays = tiny_arrays(len(vocabulary()[0]), biases="wen" in architecture)
    (write_gguf if file == "x.gguf" else write_directory)(tmp_path / file, arrays, architecture)
    old = load(str(tmp_path / file))
    tokens = old.encode(TEXT)[:20]
    bake(tmp_path / file, THETA, tmp_path / f"new {file}")
    new = load(str(tmp_path / f"new {file}"))
    assert new.name == "new x"
    np.testing.assert_allclose(scores_of(new, tokens), scores_at(old, tokens, THETA), atol=bound)
    assert np.abs(scores_of(new, tokens) - scores_of(old, tokens)).max() > 0.1


@pytest.mark.parametrize("kind", FACTORS)
def test_the_factors_of_a_quantized_block_divide_all_of_its_numbers(kind):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(0)
    data = random.integers(0, 256, 4 * size, np.uint8)
    views = FileArray("x", 0, 4 * size, kind, (4, 1, size)).views(data)
    for view in views:
        view[...] = random.uniform(0.5, 2, view.shape)
    before = gguf.dequantize(data.reshape(4, size), gguf.GGMLQuantizationType[kind])
    for view in views:
        view[...] = view * np.float16(0.5)
    after = gguf.dequantize(data.reshape(4, size), gguf.GGMLQuantizationType[kind])
    assert before.shape == (4, block)
    np.testing.assert_allclose(after, before / 2, rtol=1e-6)


def test_only_the_factors_of_queries_change_in_a_quantized_file(tmp_path):
    arrays = tiny_arrays(len(vocabulary()[0]))
    arrays |= {name: np.tile(array, 4)[:, :32] for name, array in arrays.items() if name.endswith("attn_q.weight")}
    write_gguf(tmp_path / "x.gguf", arrays, quantize=True)
    error = bake(tmp_path / "x.gguf", THETA, tmp_path / "y.gguf")
    assert 0 < error <= 2**-11
    old, new = (gguf.GGUFReader(tmp_path / name) for name in ("x.gguf", "y.gguf"))
    for before, after in zip(old.tensors, new.tensors):
        numbers = [gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in (before, after)]
        if before.name.endswith("attn_q.weight"):
            assert before.tensor_type.name == after.tensor_type.name == "Q8_0"
            theta = THETA[int(before.name.split(".")[1])].repeat(TINY["size"])[:, None]
            np.testing.assert_allclose(numbers[1] * theta, numbers[0], rtol=2**-11)
        else:
            np.testing.assert_array_equal(before.data, after.data)
    told = json.loads((tmp_path / "y.gguf.baked.json").read_text())
    assert list(told["source"]) == ["x.gguf"]


def test_a_gguf_of_another_model_is_refused(tmp_path):
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(vocabulary()[0])), architecture="gemma2")
    with pytest.raises(Refusal, match="'gemma2': baked in GGUF are llama, qwen2, qwen3"):
        bake(tmp_path / "x.gguf", THETA, tmp_path / "y.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_temperatures_are_learned_within_a_budget(tmp_path, monkeypatch):
    write_directory(tmp_path / "x", tiny_arrays(len(vocabulary()[0])), max_position_embeddings=128)
    model = load(str(tmp_path / "x"))
    monkeypatch.setattr(needles, "single_tokens", lambda model, words: list(range(1, 1 + len(words.split()))))
    monkeypatch.setattr(temperatures, "RATE", 0.2)
    monkeypatch.setattr(temperatures, "FACTS", 2)
    text = model.encode(TEXT * 12)
    learn = functools.partial(learn_temperatures, model, [text], length=120, steps=4, batch=2)
    learned = learn(budget=10.0)
    assert learned.kept == 1.0
    assert learned.needles
    assert learned.needles[1] < learned.needles[0]
    passage = temperatures.draw_passages(model, [text[len(text) * 3 // 4 :]], 120, 0, 8, 1)
    drawn = [jnp.asarray(np.random.default_rng(seed).normal(size=THETA.shape), jnp.float32) for seed in range(6)]
    worse = max(
        drawn,
        key=lambda each: float(temperatures.passage_losses(model.parameters, passage, each, model.sizes)[0].mean()),
    )
    monkeypatch.setattr(temperatures, "descend", lambda *_: worse)
    kept = learn(budget=0.01)
    assert kept.kept < 1
    assert kept.text[1] <= 1.01 * kept.text[0]
    np.testing.assert_allclose(np.log(kept.theta), kept.kept * worse, rtol=1e-4)
    with pytest.raises(Refusal, match=r"the last quarter of a text has 100 tokens, and a passage 120: give a longer"):
        learn_temperatures(model, [text[:400]], length=120)


def test_the_command_learns_bakes_and_says_what_it_brings_and_costs(tmp_path, monkeypatch, capsys):
    write_directory(tmp_path / "x", tiny_arrays(len(vocabulary()[0])), max_position_embeddings=128)
    monkeypatch.setattr(needles, "single_tokens", lambda model, words: list(range(1, 1 + len(words.split()))))
    monkeypatch.setattr(temperatures, "FACTS", 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ä b.txt").write_text(TEXT * 12)

    def type_words(*words):
        monkeypatch.setattr("sys.argv", ["language-model", "x", "--text", "ä b.txt", "--lengths", "120", *words])
        main()

    type_words("--calibrate", "theta", "--needles", "--steps", "2", "--bake", "new")
    *_, text, answer, wrote, following = [line for line in capsys.readouterr().out.splitlines() if line]
    assert "the budget is 1 %" in text
    assert answer.startswith("Hidden facts that were held out: the answer's loss goes from")
    assert wrote.startswith("wrote new")
    assert following == "Next: softmax-jax language-model new --text 'ä b.txt'"
    assert json.loads((tmp_path / "new" / "baked.json").read_text())["texts"].keys() == {"ä b.txt"}
    load(str(tmp_path / "new"))
    for words, said in [
        (["--calibrate", "theta"], "--calibrate and --bake need each other"),
        (["--needles"], "--needles, --budget and --steps are for learning: give --calibrate theta --bake NEW"),
        (["--calibrate", "s log n", "--bake", "b"], "a law of the length needs a program that has one"),
        (["--calibrate", "theta", "--bake", "new"], "--bake is new, which is there already"),
        (["--calibrate", "theta", "--bake", "b", "--budget", "1.5"], "it must be a share of the loss from 0 to 1"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            type_words(*words)
        assert said in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "x", "ä b.txt"]
