"""Baked checkpoints of transformers under plain softmax are the old ones with their softmax edited in PyTorch."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.language_models import queries
from softmax_jax.experiment.language_models.baking import bake
from softmax_jax.experiment.language_models.decoder import hidden, scores
from softmax_jax.experiment.language_models.temperatures import by_temperature
from tests.models import torch_zoo
from tests.models.test_torch_language_models import PASSAGE, write_smollm2
from tests.models.test_torch_models import HIDDEN
from tests.models.torch_zoo import GROUPED, LAYERS, SIZED, Architecture, build, library

pytestmark = pytest.mark.filterwarnings("ignore")
HEADS = 4
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = ROUTED | {"shared_expert_intermediate_size": 16}
OTHERS = {
    "Qwen2": GROUPED,
    "Qwen2Moe": GROUPED | SHARED,
    "Gemma": GROUPED | {"head_dim": 8},
    "Phi": LAYERS,
    "StableLm": GROUPED,
    "Olmo": GROUPED,
    "Qwen3Moe": SIZED | ROUTED,
}
"""Sizes of architectures that the zoo lacks."""
IN_THE_ZOO = {
    "GPT2": "GPT-2",
    "GPTNeoX": "GPT-NeoX",
    "Phi3": "Phi-3",
    "SmolLM3": "SmolLM 3",
    "Olmo2": "OLMo 2",
    "Qwen3": "Qwen 3",
    "Gemma3": "Gemma 3",
}
ALWAYS = ["Llama", "GPT2", "Gemma3"]
"""Rows of its own, a fused projection, one θ a layer; the others are rare."""
NAMES = [*ALWAYS, *(pytest.param(n, marks=pytest.mark.rare) for n in queries.ARCHITECTURES if n not in ALWAYS)]


def architecture_of(name: str) -> Architecture:
    if name in OTHERS:
        return Architecture("decoder", f"{name}ForCausalLM", OTHERS[name])
    return torch_zoo.ARCHITECTURES[IN_THE_ZOO.get(name, name)]


@contextlib.contextmanager
def divided_in_torch(theta: np.ndarray) -> Iterator[list[int]]:
    """Edits the softmax of each layer of PyTorch in turn, but no router's, to softmax(z / θ); yields their heads."""
    torch = library("torch")
    stock, sites = torch.nn.functional.softmax, []

    def softmax(logits: Any, *arguments: Any, **options: Any) -> Any:
        if logits.ndim == 4:
            divisors = torch.tensor(theta[len(sites)], dtype=logits.dtype)[None, :, None, None]
            logits = torch.where(logits > HIDDEN, logits / divisors, logits)
            sites.append(logits.shape[1])
        return stock(logits, *arguments, **options)

    with mock.patch.object(torch.nn.functional, "softmax", softmax):
        yield sites


def logits_in_torch(model: Any, tokens: np.ndarray) -> np.ndarray:
    torch = library("torch")
    with torch.no_grad():
        return model(input_ids=torch.tensor(tokens.astype(np.int64)), use_cache=False).logits.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_a_baked_checkpoint_is_the_old_one_with_its_softmax_edited(tmp_path: Path, name: str):
    model, _ = build(architecture_of(name))
    model.save_pretrained(tmp_path / "old")
    theta = np.exp(np.random.default_rng(0).normal(0, 0.5, (2, HEADS)))
    if queries.ARCHITECTURES[name].by_layer:
        theta = np.repeat(theta[:, :1], HEADS, 1)
    bake(tmp_path / "old", theta, tmp_path / "new")
    baked = type(model).from_pretrained(tmp_path / "new", attn_implementation="eager").eval()
    tokens = np.random.default_rng(1).integers(1, 64, (1, 16))
    plain = logits_in_torch(model, tokens)
    with divided_in_torch(theta) as sites:
        edited = logits_in_torch(model, tokens)
    assert sites == [HEADS] * 2
    np.testing.assert_allclose(logits_in_torch(baked, tokens), edited, atol=1e-4)
    assert np.abs(edited - plain).max() > 1e-2


@pytest.mark.rare
def test_smollm2_baked_under_the_softmax_of_pytorch_is_the_swapped_one(tmp_path: Path):
    """To the rounding of float32, which is what two programs differ by on the model as it is."""
    own = write_smollm2(tmp_path / "old")
    layers, heads = len(own.parameters["layers"]["query"]), own.sizes.heads
    log_theta = np.random.default_rng(0).normal(0, 0.2, (layers, heads))
    bake(tmp_path / "old", np.exp(log_theta), tmp_path / "new")
    tokens = own.encode(PASSAGE.read_text())[:256]

    def in_torch(path: Path) -> np.ndarray:
        model = library("transformers").AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        return logits_in_torch(model.eval(), tokens[None])[0]

    def swapped(log_theta: np.ndarray) -> np.ndarray:
        numbers = jnp.asarray(log_theta, jnp.float32)
        states, _ = hidden(own.parameters, own.sizes, jnp.asarray(tokens), by_temperature, numbers)
        return np.asarray(scores(own.parameters, states))

    plain, edited = swapped(np.zeros_like(log_theta)), swapped(log_theta)
    rounding = np.abs(in_torch(tmp_path / "old") - plain).max()
    error = np.abs(in_torch(tmp_path / "new") - edited).max()
    print(f"largest difference of a logit: {rounding:.2g} as it is, {error:.2g} baked")
    assert error < min(2 * rounding, 1e-3)
    assert np.abs(edited - plain).max() > 1
