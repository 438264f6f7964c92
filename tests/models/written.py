"""Writes tiny language models as GGUF files and as directories of safetensors."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.language_models.decoder import hidden, scores
from tests.experiment.language_models.plain_llama import TINY

gguf, safetensors, tokenizers = (pytest.importorskip(name) for name in ("gguf", "safetensors.numpy", "tokenizers"))

TEXT = "Grüße, 1024 items!\n\n  def f(x):\n\treturn x ** 2  # 日本語 🙂 naïve\r\n"


def vocabulary():
    """Tokens and merges of a byte-level tokenizer."""
    tokens = ["<|end|>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    merges = [("i", "t"), ("e", "m"), ("it", "em"), ("Ġ", "item"), ("1", "0")]
    return tokens + ["".join(merge) for merge in merges], merges


def permuted(array, heads):
    """Rows (i, i + half) of a head to (2i, 2i + 1), as GGUF keeps those of queries and keys."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write_gguf(path, arrays, architecture="llama", pre="smollm", quantize=False, more=None):
    """Writes a GGUF file; `more` are keys of the metadata, which replace others, each with its value or None."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(TINY["layers"])
    writer.add_context_length(64)
    writer.add_head_count(TINY["heads"])
    writer.add_head_count_kv(TINY["key_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges([" ".join(merge) for merge in merges])
    for key, value in (more or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            kind = gguf.GGUFValueType.get_type(value)
            sub = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, kind, sub)
    by = {"attn_q": TINY["heads"], "attn_k": TINY["key_heads"]} if architecture == "llama" else {}
    for name, array in arrays.items():
        kept = permuted(array, by[name.split(".")[2]]) if name.startswith("blk") and name.split(".")[2] in by else array
        if quantize and "ffn_down" not in name and kept.ndim == 2 and kept.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(kept, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_directory(path, arrays, architecture="LlamaForCausalLM", **more):
    """Writes a directory; `more` are keys of config.json, which replace others."""
    there = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    named = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    named["output.weight"] = "lm_head.weight"
    for name in arrays:
        if name.startswith("blk"):
            _, layer, part, kind = name.split(".")
            named[name] = f"model.layers.{layer}.{there[part]}.{kind}"
    path.mkdir()
    safetensors.save_file({named[name]: array for name, array in arrays.items()}, path / "model.safetensors")
    config = {"architectures": [architecture], "num_attention_heads": TINY["heads"], "rms_norm_eps": 1e-5}
    config |= {"num_key_value_heads": TINY["key_heads"], "num_hidden_layers": TINY["layers"]}
    rope = {"rope_theta": 500}
    config |= {"rope_parameters": rope} if architecture != "MistralForCausalLM" else rope  # of transformers 5 and 4
    config |= {"max_position_embeddings": 64, "tie_word_embeddings": "output.weight" not in arrays} | more
    (path / "config.json").write_text(json.dumps(config))
    write_tokenizer(path / "tokenizer.json")


def write_tokenizer(path):
    tokens, merges = vocabulary()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(path))


def scores_of(model, tokens):
    return np.asarray(scores(model.parameters, hidden(model.parameters, model.sizes, jnp.asarray(tokens))[0]))
