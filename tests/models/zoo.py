"""Small models of other libraries, with random weights: one or two layers, 32 wide.

Each is a function of a type that returns a `Model`. It imports its library when it is called, and skips the test where
that is not installed. Nothing is downloaded.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "jax"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = os.environ["DIFFUSERS_VERBOSITY"] = "error"

LENGTH, WIDTH, HEADS, WORDS = 6, 32, 4, 32
TOKENS = 1 + jnp.arange(LENGTH)[None]  # 0 may be padding
PRESENT = jnp.arange(LENGTH)[None] < LENGTH - 1
CAUSAL = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
NONE, SELECT, BOTH = (frozenset({how}) for how in ("none", "select", "select and values"))
ROUTED = ("attention", "choice") * 2
"""Uses of two layers with a mixture of experts."""
DECODERS = 'pip install penzai gemma google-tunix "sentencepiece<0.2.1"'
"""These are in no requirements file: they are heavy."""
Softmax = Callable[..., jax.Array]


class Model(NamedTuple):
    """A function of parameters and inputs, with both, and what is true of its softmaxes."""

    apply: Callable[..., Any]
    parameters: Any
    inputs: tuple[Any, ...]
    uses: Sequence[str] = ("attention", "attention")
    """The use of each softmax, in the order of the program."""
    masks: frozenset[str] = NONE
    """How attention hides logits."""
    experts: int = 0
    """Number of entries in a row of a router."""
    edited: Callable[[Softmax], Callable[..., Any]] | None = None
    """The same function with another softmax, where it does not call `jax.nn.softmax`."""


def library(name: str, install: str = "pip install -r requirements/models.txt") -> Any:
    """Imports a library, or skips the test."""
    return pytest.importorskip(name, reason=install)


def normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def random_parameters(shapes: Any, dtype: Any = jnp.float32) -> Any:
    """Parameters of these shapes, drawn without compiling the initializers of a library."""
    draw = np.random.default_rng(0)

    def leaf(path: Any, shape: Any) -> jax.Array:
        centre, spread = (
            (1, 0.1) if any(name in jax.tree_util.keystr(path) for name in ("scale", "gamma")) else (0, 0.3)
        )
        return jnp.asarray(centre + spread * draw.normal(size=shape.shape), dtype)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


# Hugging Face


def hugging_face(name: str, dtype: Any, **sizes: Any) -> tuple[Any, Any]:
    """A model and its parameters."""
    transformers = library("transformers")
    config = getattr(transformers, name.removesuffix("Model").removesuffix("LMHead") + "Config")(
        vocab_size=WORDS, **sizes
    )
    model = getattr(transformers, f"Flax{name}")(config, dtype=dtype, _do_init=False)
    return model, random_parameters(model.params_shape_tree, dtype)


def encoder(name: str, dtype: Any, **sizes: Any) -> Model:
    """A model of tokens of which the last is padding."""
    model, parameters = hugging_face(name, dtype, **sizes)
    return Model(lambda p, *inputs: model(*inputs, params=p)[0], parameters, (TOKENS, PRESENT), masks=BOTH)


LAYERS = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64}
OF_GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 16}


def bert(dtype: Any) -> Model:
    """Its layers multiply their weights by a mask of heads."""
    return encoder("BertModel", dtype, **LAYERS)


def gpt2(dtype: Any) -> Model:
    return encoder("GPT2Model", dtype, **OF_GPT2)


def llama(dtype: Any) -> Model:
    return encoder("LlamaModel", dtype, **LAYERS, num_key_value_heads=2, max_position_embeddings=16)


def generating(beams: int) -> Model:
    """GPT-2 that writes four tokens: it reads those that are there, and runs in a loop."""
    model, parameters = hugging_face("GPT2LMHeadModel", jnp.float32, **OF_GPT2, pad_token_id=0, eos_token_id=0)

    def generate(parameters, tokens):
        return model.generate(tokens, params=parameters, max_new_tokens=4, num_beams=beams, do_sample=False).sequences

    layers, choice = ("attention", "attention"), ("log",) if beams > 1 else ()
    uses = layers + (layers + choice) * 2  # the first only to learn the shapes of the cache
    return Model(generate, parameters, (TOKENS,), uses, BOTH)


@contextlib.contextmanager
def old_clip() -> Iterator[None]:
    """Gives `jnp.clip` back an argument that JAX has taken away."""
    clip = jnp.clip

    def with_old(x, *bounds, **named):
        return clip(x, *bounds, **{name.removeprefix("a_"): bound for name, bound in named.items()})

    with mock.patch.object(jnp, "clip", with_old):
        yield


def t5(dtype: Any) -> Model:
    """A layer of an encoder, then one of a decoder, with attention to itself and to the encoder."""
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": HEADS, "decoder_start_token_id": 0}
    with old_clip():
        model, parameters = hugging_face("T5Model", dtype, **sizes)

    def apply(parameters, tokens, present, written):
        with old_clip():
            return model(tokens, present, decoder_input_ids=written, params=parameters)[0]

    return Model(apply, parameters, (TOKENS, PRESENT, TOKENS[:, :4]), ("attention",) * 3, BOTH)


def whisper(dtype: Any) -> Model:
    sizes = {"d_model": WIDTH, "num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 16}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": HEADS, f"{part}_ffn_dim": 64}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model, parameters = hugging_face("WhisperModel", dtype, **sizes, **tokens)
    inputs = normal(1, 8, 12, dtype=dtype), TOKENS[:, :4]
    return Model(lambda p, *i: model(*i, params=p)[0], parameters, inputs, ("attention",) * 3, BOTH | NONE)


def unet(dtype: Any) -> Model:
    """A U-Net of diffusion: one layer down, one in the middle, two up, each with attention to itself and to a text."""
    unets = library("diffusers.models.unets.unet_2d_condition_flax")
    sizes = {"sample_size": 4, "block_out_channels": (WIDTH,), "layers_per_block": 1, "cross_attention_dim": 16}
    kinds = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}
    model = unets.FlaxUNet2DConditionModel(**sizes, **kinds, attention_head_dim=HEADS, dtype=dtype)
    parameters = random_parameters(jax.eval_shape(model.init_weights, jax.random.key(0)), dtype)
    inputs = normal(1, 4, 4, 4, dtype=dtype), jnp.array([3]), normal(1, 5, 16, dtype=dtype, seed=1)
    return Model(lambda p, *arrays: model.apply({"params": p}, *arrays).sample, parameters, inputs, ("attention",) * 8)


# Keras


def keras_hub(name: str, dtype: Any, **sizes: Any) -> Model:
    models = library("keras_hub.models")
    type_name = jnp.dtype(dtype).name
    model = getattr(models, f"{name}Backbone")(
        WORDS, num_layers=2, intermediate_dim=64, hidden_dim=WIDTH, dtype=type_name, **sizes
    )
    fixed = [variable.value for variable in model.non_trainable_variables]

    def apply(parameters, tokens, present):
        return model.stateless_call(parameters, fixed, {"token_ids": tokens, "padding_mask": present})[0]

    drawn = random_parameters({variable.path: variable.value for variable in model.trainable_variables}, dtype)
    parameters = [drawn[variable.path] for variable in model.trainable_variables]
    return Model(apply, parameters, (TOKENS, PRESENT), masks=SELECT)


GROUPS = {"num_query_heads": HEADS, "num_key_value_heads": 2}
EXPERTS = {**GROUPS, "num_experts": 4, "top_k": 2, "sliding_window": 4}


def keras_gpt2(dtype: Any) -> Model:
    return keras_hub("GPT2", dtype, num_heads=HEADS, max_sequence_length=16)


def keras_gemma3(dtype: Any) -> Model:
    window = {"use_sliding_window_attention": True, "sliding_window_size": 4}
    return keras_hub("Gemma3", dtype, image_size=None, head_dim=8, **GROUPS, **window)


def keras_mixtral(dtype: Any) -> Model:
    return keras_hub("Mixtral", dtype, **EXPERTS)._replace(uses=ROUTED, experts=4)


def keras_gpt_oss(dtype: Any) -> Model:
    """A sink is one more logit of each row; a router weighs the two best of four experts."""
    model = keras_hub("GptOss", dtype, **EXPERTS)
    return model._replace(uses=ROUTED, experts=2, masks=BOTH)


# Equinox and Haiku


def equinox_model(model: Any, apply: Callable[..., Any], dtype: Any, *inputs: Any, **truth: Any) -> Model:
    eqx = library("equinox")
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    parameters = jax.tree.map(lambda array: array.astype(dtype), arrays)
    return Model(lambda p, *i: apply(eqx.combine(p, rest), *i), parameters, inputs, **truth)


def equinox(dtype: Any) -> Model:
    layer = library("equinox").nn.MultiheadAttention(HEADS, WIDTH, key=jax.random.key(0))
    x = normal(LENGTH, WIDTH, dtype=dtype)
    truth = {"uses": ("attention",), "masks": SELECT}
    return equinox_model(layer, lambda layer, x: layer(x, x, x, mask=CAUSAL), dtype, x, **truth)


def haiku(dtype: Any) -> Model:
    hk = library("haiku")

    def forward(x):
        layer = hk.MultiHeadAttention(HEADS, 8, w_init=hk.initializers.VarianceScaling(1.0), name="attention")
        return layer(x, x, x, mask=CAUSAL[None])

    model = hk.without_apply_rng(hk.transform(forward))
    x = normal(LENGTH, WIDTH, dtype=dtype)
    return Model(model.apply, model.init(jax.random.key(0), x), (x,), ("attention",), SELECT)


def equimo_vit(dtype: Any) -> Model:
    try:
        vision = library("equimo.vision.models.vit")  # of version 2
    except pytest.skip.Exception:
        vision = library("equimo.models.vit")
    sizes = {"img_size": 8, "in_channels": 3, "dim": WIDTH, "patch_size": 4, "num_heads": HEADS, "depths": [2]}
    model = vision.VisionTransformer(**sizes, num_classes=10, key=jax.random.key(0))
    image = normal(3, 8, 8, dtype=dtype)
    return equinox_model(model, lambda m, x: m(x, key=jax.random.key(0), inference=True), dtype, image)


def equimo_tabpfn(dtype: Any) -> Model:
    """Rows that are asked see the rows with labels; index-add puts the labels in."""
    tabular = library("equimo.tabular.models.tabpfn", "pip install equimo>=2, on Python 3.12 or newer")
    sizes = {"num_classes": 4, "dim": 16, "depths": (1, 1, 1), "num_heads": (2, 2, 2), "num_inducing_points": 3}
    small = {"num_cls_tokens": 2, "decoder_head_dim": 8, "decoder_num_heads": 2, "scaling_mlp_hidden_dim": 8}
    model = tabular.TabPFN(**sizes, **small, key=jax.random.key(0))
    x, labels = normal(LENGTH, 4, dtype=dtype), jnp.arange(LENGTH) % 4
    apply = lambda model, x: model(x, labels, 4, key=jax.random.key(0), inference=True)  # noqa: E731
    return equinox_model(model, apply, dtype, x)._replace(uses=("attention",) * 6)


# Decoders of libraries for large ones


def gemma(dtype: Any) -> Model:
    """Gemma 3: the first layer sees four tokens, the second all before it."""
    parts = ("_config", "_modules", "_transformer")
    config, modules, transformer = (library(f"gemma.gm.nn.{part}", DECODERS) for part in parts)
    of_layers = modules.AttentionType.LOCAL_SLIDING, modules.AttentionType.GLOBAL
    sizes = {"num_embed": WORDS, "embed_dim": WIDTH, "hidden_dim": 64, "num_heads": HEADS, "head_dim": 8}
    norms = dict.fromkeys(("use_post_attn_norm", "use_post_ffw_norm", "use_qk_norm"), True)
    settings = config.TransformerConfig(
        **sizes, **norms, num_kv_heads=2, final_logit_softcap=None, attention_types=of_layers, sliding_window_size=4
    )
    model = transformer.Transformer(config=settings, dtype=dtype)
    parameters = model.init(jax.random.key(0), TOKENS)
    return Model(lambda p, tokens: model.apply(p, tokens).logits, parameters, (TOKENS,), masks=SELECT)


def tunix(dtype: Any) -> Model:
    """Qwen 3."""
    from flax import nnx

    qwen = library("tunix.models.qwen3.model", DECODERS)
    sizes = {"num_layers": 2, "vocab_size": WORDS, "embed_dim": WIDTH, "hidden_dim": 64, "head_dim": 8}
    config = qwen.ModelConfig(**sizes, num_heads=HEADS, num_kv_heads=2, rope_theta=10_000, norm_eps=1e-6, dtype=dtype)
    structure, parameters = nnx.split(qwen.Qwen3(config, rngs=nnx.Rngs(0)))

    def apply(parameters, tokens):
        return nnx.merge(structure, parameters)(tokens, jnp.arange(LENGTH)[None], None, CAUSAL[None])[0]

    return Model(apply, parameters, (TOKENS,), masks=SELECT)


def penzai(dtype: Any) -> Model:
    """Llama with named axes."""
    pz, llama = library("penzai.pz", DECODERS), library("penzai.models.transformer.variants.llamalike_common", DECODERS)
    sizes = {"embedding_dim": WIDTH, "projection_dim": 8, "mlp_hidden_dim": 64, "vocab_size": WORDS}
    config = llama.LlamalikeTransformerConfig(
        **sizes,
        num_kv_heads=2,
        query_head_multiplier=2,
        num_decoder_blocks=2,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
        parameter_dtype=dtype,
        activation_dtype=dtype,
    )
    built = llama.build_llamalike_transformer(config, init_base_rng=jax.random.key(0), name="llama")
    model, variables = pz.unbind_params(built)
    places = pz.nx.wrap(jnp.arange(LENGTH)[None], "batch", "seq")

    def apply(values, tokens):
        bound = [pz.Parameter(value=value, label=one.label) for value, one in zip(values, variables)]
        named = pz.bind_variables(model, bound)(pz.nx.wrap(tokens, "batch", "seq"), token_positions=places)
        return named.unwrap("batch", "seq", "vocabulary")

    parameters = [variable.value for variable in variables]
    return Model(apply, parameters, (TOKENS,), masks=SELECT)


# Attention of libraries that are not on the index, as the smallest function of the same form


def written(attend: Callable[..., Any], edited: Callable[[Softmax], Callable[..., Any]], dtype: Any) -> Model:
    """Causal attention of four heads on keys and values of two; `attend` is of logits and values."""

    def layer(attend: Callable[..., Any]) -> Callable[..., Any]:
        def apply(parameters, x):
            query, key, value = (jnp.einsum("ld,d...->l...", x, weights) for weights in parameters)
            logits = jnp.einsum("qngd,knd->ngqk", query, key)
            logits = jnp.where(CAUSAL, logits, -0.7 * float(jnp.finfo(dtype).max))
            return attend(logits, value).reshape(LENGTH, WIDTH)

        return apply

    sizes = (2, 2, 8), (2, 8), (2, 8)
    parameters = [normal(WIDTH, *size, dtype=dtype, seed=seed) / 6 for seed, size in enumerate(sizes)]
    x = normal(LENGTH, WIDTH, dtype=dtype)
    return Model(layer(attend), parameters, (x,), ("attention",), SELECT, 0, lambda softmax: layer(edited(softmax)))


def weighed(weights: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.einsum("ngqk,knd->qngd", weights, values)


def maxtext(dtype: Any) -> Model:
    """Plain attention of MaxText: groups become heads between the sum of the exponentials and the division by it."""

    def attend(logits, values):
        terms = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
        total = jnp.moveaxis(jnp.sum(terms, -1, keepdims=True), 2, 0).reshape(LENGTH, HEADS, 1)
        return weighed(terms, values).reshape(LENGTH, HEADS, 8) / total

    return written(attend, lambda softmax: lambda logits, values: weighed(softmax(logits), values), dtype)


def flaxformer(dtype: Any) -> Model:
    """Attention with an extra logit of 0 in the denominator."""

    def attend(logits, values):
        largest = jnp.maximum(jnp.max(logits, -1, keepdims=True), 0)
        terms = jnp.exp(logits - largest)
        return weighed(terms / (jnp.sum(terms, -1, keepdims=True) + jnp.exp(-largest)), values)

    def edited(softmax):
        def attend(logits, values):
            longer = jnp.concatenate([logits, jnp.zeros_like(logits[..., :1])], -1)
            return weighed(softmax(longer)[..., :-1], values)

        return attend

    return written(attend, edited, dtype)


MODELS: dict[str, Callable[[Any], Model]] = {
    "transformers FlaxBert": bert,
    "transformers FlaxGPT2": gpt2,
    "transformers FlaxT5": t5,
    "transformers FlaxLlama": llama,
    "transformers FlaxWhisper": whisper,
    "diffusers FlaxUNet2DCondition": unet,
    "keras-hub GPT2": keras_gpt2,
    "keras-hub Gemma 3": keras_gemma3,
    "keras-hub Mixtral": keras_mixtral,
    "keras-hub GptOss": keras_gpt_oss,
    "equimo ViT": equimo_vit,
    "equimo TabPFN": equimo_tabpfn,
    "equinox MultiheadAttention": equinox,
    "dm-haiku MultiHeadAttention": haiku,
    "gemma Gemma 3": gemma,
    "google-tunix Qwen 3": tunix,
    "penzai Llama": penzai,
    "MaxText's plain attention, its form": maxtext,
    "flaxformer's extra logit, its form": flaxformer,
}
"""By the distribution that has it, and its name there."""
