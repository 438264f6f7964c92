"""Small decoders of libraries for large ones, with random weights; heavy, and so in no requirements file."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.transforms.models import run, visible

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]
INSTALL = 'pip install penzai gemma google-tunix "sentencepiece<0.2.1"'
LENGTH, VOCABULARY = 12, 32
TOKENS = 1 + jnp.arange(LENGTH)[None]  # 0 may be padding
HEADS, GROUPS = 4, 2
Model = tuple[Callable[..., Any], Any]


@pytest.fixture(autouse=True)
def promotion():
    """What these libraries need of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=INSTALL)


def gemma() -> Model:
    """Two layers of Gemma 3: the first sees four tokens, the second all before it."""
    config, modules, transformer = (imported(f"gemma.gm.nn.{name}") for name in ("_config", "_modules", "_transformer"))
    of_layers = modules.AttentionType.LOCAL_SLIDING, modules.AttentionType.GLOBAL
    sizes = {"num_embed": VOCABULARY, "embed_dim": 32, "hidden_dim": 64, "num_heads": HEADS, "head_dim": 8}
    norms = dict.fromkeys(("use_post_attn_norm", "use_post_ffw_norm", "use_qk_norm"), True)
    settings = config.TransformerConfig(
        **sizes,
        **norms,
        num_kv_heads=GROUPS,
        final_logit_softcap=None,
        attention_types=of_layers,
        sliding_window_size=4,
    )
    model = transformer.Transformer(config=settings, dtype=jnp.float32)
    return lambda p, tokens: model.apply(p, tokens).logits, model.init(jax.random.key(0), TOKENS)


def tunix() -> Model:
    """Two layers of Qwen 3."""
    from flax import nnx

    qwen = imported("tunix.models.qwen3.model")
    sizes = {"num_layers": 2, "vocab_size": VOCABULARY, "embed_dim": 32, "hidden_dim": 64, "head_dim": 8}
    config = qwen.ModelConfig(**sizes, num_heads=HEADS, num_kv_heads=GROUPS, rope_theta=10_000, norm_eps=1e-6)
    structure, parameters = nnx.split(qwen.Qwen3(config, rngs=nnx.Rngs(0)))
    causal = jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))

    def apply(parameters, tokens):
        return nnx.merge(structure, parameters)(tokens, jnp.arange(LENGTH)[None], None, causal)[0]

    return apply, parameters


def penzai() -> Model:
    """Two layers of Llama."""
    pz, llama = imported("penzai.pz"), imported("penzai.models.transformer.variants.llamalike_common")
    sizes = {"embedding_dim": 32, "projection_dim": 8, "mlp_hidden_dim": 64, "vocab_size": VOCABULARY}
    config = llama.LlamalikeTransformerConfig(
        **sizes,
        num_kv_heads=GROUPS,
        query_head_multiplier=HEADS // GROUPS,
        num_decoder_blocks=2,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
    )
    built = llama.build_llamalike_transformer(config, init_base_rng=jax.random.key(0), name="llama")
    model, variables = pz.unbind_params(built)
    places = pz.nx.wrap(jnp.arange(LENGTH)[None], "batch", "seq")

    def apply(values, tokens):
        bound = [pz.Parameter(value=value, label=one.label) for value, one in zip(values, variables)]
        named = pz.bind_variables(model, bound)(pz.nx.wrap(tokens, "batch", "seq"), token_positions=places)
        return named.unwrap("batch", "seq", "vocabulary")

    return apply, [variable.value for variable in variables]


MODELS = {"gemma": gemma, "tunix": tunix, "penzai": penzai}


@pytest.mark.parametrize("library", MODELS)
def test_each_layer_is_a_site(library: str):
    apply, parameters = MODELS[library]()
    found = sj.sites(apply)(parameters, TOKENS)
    assert [site.use for site in found] == ["attention", "attention"]
    assert {site.mask for site in found} == {"values" if library == "penzai" else "select"}
    assert {int(np.prod(site.shape)) for site in found} == {HEADS * LENGTH * LENGTH}


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.parametrize("name", ["hardmax", "entmax15"])
def test_it_is_swapped_as_if_edited_by_hand(library: str, name: str, monkeypatch: pytest.MonkeyPatch):
    apply, parameters = MODELS[library]()
    stock, same, got = run(
        lambda *a: (apply(*a), sj.swap(apply, "softmax")(*a), sj.swap(apply, name)(*a)), parameters, TOKENS
    )
    np.testing.assert_array_equal(stock, same)
    assert np.abs(np.asarray(got - stock)).max() > 1e-3
    gradient = run(jax.grad(lambda p: (sj.swap(apply, name)(p, TOKENS) ** 2).sum()), parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    monkeypatch.setattr(jax.nn, "softmax", lambda z, axis=-1: sj.normalizer(name)(z, axis, visible(z)))
    jax.clear_caches()  # some compile their layers themselves
    np.testing.assert_allclose(got, run(apply, parameters, TOKENS), rtol=1e-5, atol=1e-6)
