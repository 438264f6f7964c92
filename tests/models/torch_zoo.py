"""Small PyTorch models of transformers with random weights: two layers, 32 wide. Nothing is downloaded."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

INSTALL = "pip install -r requirements/torch.txt"
NONE, VALUES, BOTH = (frozenset({how}) for how in ("none", "values", "select and values"))
ATTENTION, ROUTED = ("attention", "attention"), ("attention", "choice") * 2
TOKENS = {"input_ids": [list(range(1, 9))], "attention_mask": [[1] * 7 + [0]]}
"""Eight tokens, of which the last is padding."""
WRITTEN = TOKENS | {"decoder_input_ids": [list(range(1, 6))]}
IMAGE, SOUND, SPECTRUM = {"pixel_values": (1, 3, 16, 16)}, {"input_values": (1, 200)}, {"input_features": (1, 8, 16)}
"""Shapes of inputs that are drawn."""

WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LAYERS = WIDE | {"intermediate_size": 64, "vocab_size": 64}
GROUPED = LAYERS | {"num_key_value_heads": 2}
SIZED = GROUPED | {"head_dim": 8, "sliding_window": 4}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
ROUTER = {"num_local_experts": 4, "num_experts_per_tok": 2}
OF_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 64}
PARTS = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in [("layers", 2), ("ffn_dim", 64)]}
PARTS |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")} | {"d_model": 32, "vocab_size": 64}
WAVES = {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
WAVES |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
SPOKEN = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16, "bos_token_id": 1}
SPOKEN |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LATENT |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1, "num_key_value_heads": 4}
PIECES = {"image_size": 16, "patch_size": 8}


class Architecture(NamedTuple):
    """A class of transformers with the sizes of a small model, and what is true of its softmaxes."""

    kind: str
    """What it is, and what is special in its attention."""
    name: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Any] = TOKENS
    """Arguments by name: lists of numbers, or shapes to draw."""
    uses: Sequence[str] = ATTENTION
    masks: frozenset[str] = BOTH
    reason: str = ""
    """Words of the reason for which it is refused."""


ARCHITECTURES: dict[str, Architecture] = {
    "Llama": Architecture("decoder, grouped heads", "LlamaForCausalLM", GROUPED),
    "GPT-2": Architecture("decoder", "GPT2LMHeadModel", OF_GPT2),
    "Mistral": Architecture("decoder, window", "MistralForCausalLM", SIZED),
    "Qwen 3": Architecture("decoder, QK norm", "Qwen3ForCausalLM", SIZED),
    "Gemma 2": Architecture("decoder, soft cap, windows", "Gemma2ForCausalLM", SIZED),
    "Gemma 3": Architecture("decoder, QK norm, windows", "Gemma3ForCausalLM", SIZED | MIXED),
    "Phi-3": Architecture("decoder", "Phi3ForCausalLM", GROUPED | {"pad_token_id": 0}),
    "SmolLM 3": Architecture("decoder, layers without RoPE", "SmolLM3ForCausalLM", GROUPED | {"pad_token_id": 0}),
    "OLMo 2": Architecture("decoder, QK norm", "Olmo2ForCausalLM", GROUPED),
    "OPT": Architecture(
        "decoder", "OPTForCausalLM", WIDE | {"ffn_dim": 64, "word_embed_proj_dim": 32, "vocab_size": 64}
    ),
    "GPT-NeoX": Architecture("decoder", "GPTNeoXForCausalLM", LAYERS),
    "Falcon": Architecture(
        "decoder, grouped heads", "FalconForCausalLM", WIDE | {"new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "Bloom": Architecture(
        "decoder, ALiBi", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
    ),
    "MPT": Architecture(
        "decoder, ALiBi", "MptForCausalLM", {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 64}
    ),
    "Mixtral": Architecture("decoder, experts", "MixtralForCausalLM", GROUPED | ROUTER, uses=ROUTED),
    "OLMoE": Architecture(
        "decoder, experts", "OlmoeForCausalLM", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}, uses=ROUTED
    ),
    "gpt-oss": Architecture(
        "decoder, sinks, windows, experts",
        "GptOssForCausalLM",
        SIZED | MIXED | ROUTER,
        uses=ATTENTION * 2,
        masks=BOTH | VALUES,
    ),
    "DeepSeek-V3": Architecture("decoder, latent attention, experts", "DeepseekV3ForCausalLM", LAYERS | LATENT),
    "Llama 4": Architecture(
        "decoder, chunks, experts", "Llama4ForCausalLM", GROUPED | {"head_dim": 8, "num_local_experts": 2}
    ),
    "RecurrentGemma": Architecture(
        "decoder, recurrent, window",
        "RecurrentGemmaForCausalLM",
        GROUPED | {"num_hidden_layers": 3, "attention_window_size": 4},
        uses=ATTENTION[:1],
    ),
    "BERT": Architecture("encoder", "BertModel", LAYERS),
    "DeBERTa-v2": Architecture(
        "encoder, relative positions",
        "DebertaV2Model",
        LAYERS | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "ModernBERT": Architecture(
        "encoder, windows", "ModernBertModel", LAYERS | {"local_attention": 4, "pad_token_id": 0}
    ),
    "XLNet": Architecture(
        "encoder, relative positions",
        "XLNetModel",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 64},
        masks=VALUES,
    ),
    "T5": Architecture(
        "encoder and decoder, learned biases",
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
        WRITTEN,
        ATTENTION * 3,
    ),
    "BART": Architecture("encoder and decoder", "BartForConditionalGeneration", PARTS, WRITTEN, ATTENTION * 3),
    "Whisper": Architecture(
        "speech, encoder and decoder",
        "WhisperForConditionalGeneration",
        PARTS | SPOKEN,
        SPECTRUM | {"decoder_input_ids": [list(range(1, 6))]},
        ATTENTION * 3,
        BOTH | NONE,
    ),
    "wav2vec 2.0": Architecture("speech, encoder", "Wav2Vec2Model", LAYERS | WAVES, SOUND, masks=NONE),
    "HuBERT": Architecture("speech, encoder", "HubertModel", LAYERS | WAVES, SOUND, masks=NONE),
    "ViT": Architecture("vision", "ViTModel", WIDE | PIECES, IMAGE, masks=NONE),
    "DINOv2": Architecture("vision", "Dinov2Model", WIDE | PIECES, IMAGE, masks=NONE),
    "CLIP": Architecture(
        "vision and text",
        "CLIPModel",
        {"text_config": LAYERS, "vision_config": WIDE | PIECES | {"intermediate_size": 64}, "projection_dim": 16},
        TOKENS | IMAGE,
        ATTENTION * 2,
        BOTH | NONE,
    ),
}
"""By the name that people use."""
REFUSED = {
    "Mamba": Architecture(
        "decoder without attention", "MambaForCausalLM", WIDE | {"vocab_size": 64}, reason="'View' object has no"
    ),
    "Longformer": Architecture(
        "encoder, blocks", "LongformerModel", LAYERS | {"attention_window": 4}, reason="IndexError"
    ),
    "Reformer": Architecture("encoder, hashing", "ReformerModel", {}, reason="by the values of its arrays"),
}
"""Models that are refused."""


def library(name: str) -> Any:
    """Imports a library, or skips the test."""
    return pytest.importorskip(name, reason=INSTALL)


def build(architecture: Architecture) -> tuple[Any, dict[str, Any]]:
    """Returns a model whose weights matter, in evaluation mode, and its inputs as tensors."""
    torch, transformers = library("torch"), library("transformers")
    if int(transformers.__version__.split(".")[0]) < 5 or find_spec("torchax") is None:
        pytest.skip(INSTALL)
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.name)
    config = model_class.config_class(**architecture.sizes)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initializers draw logits near 0
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1))
    inputs = {
        name: torch.randn(*given) if isinstance(given, tuple) else torch.tensor(given)
        for name, given in architecture.inputs.items()
    }
    return model, inputs
