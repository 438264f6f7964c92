"""Tables of keys of config.json and GGUF that are not read, each with the reason why it changes no logit of a text."""

from typing import Any

Table = tuple[tuple[str, str], ...]
"""Reasons, each with the names of keys, in which * stands for any text."""
HARMLESS: Table = (
    (
        "tells where the model comes from",
        "_name_or_path name_or_path _commit_hash transformers_version is_llama_config",
    ),
    ("tells which program wrote or adapted the file", "unsloth_version unsloth_fixed transformers.js_config"),
    (
        "is for other uses of a text than its loss",
        "task_specific_params finetuning_task problem_type prefix num_labels",
    ),
    ("names the classes of a head that is not read", "id2label label2id"),
    (
        "acts in training only",
        "attention_dropout hidden_dropout initializer_range gradient_checkpointing tf_legacy_loss",
    ),
    ("tells how others compute the same numbers", "pretraining_tp chunk_size_feed_forward torchscript use_cache"),
    ("tells what others return", "output_attentions output_hidden_states output_scores return_dict*"),
    (
        "chooses a kernel for the same attention",
        "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled is_decoder",
    ),
    (
        "tells a type: that of the arrays is read from them, and all is computed in float32",
        "dtype torch_dtype use_bfloat16",
    ),
    (
        "names tokens that are never added to a text",
        "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id forced_bos_token_id "
        "forced_eos_token_id tokenizer_class",
    ),
    ("is read by no llama of transformers, which reads max_position_embeddings", "max_sequence_length"),
    (
        "says how to draw text, which is not done",
        "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
        "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens "
        "begin_suppress_tokens max_new_tokens cache_implementation",
    ),
)
"""Keys of config.json that are not read, as none of them changes the logits of a text."""
HARMLESS_IN_LLAMA: Table = (("a Llama of transformers has no window", "use_sliding_window max_window_layers"),)
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
}
"""Keys of config.json with the values that this decoder computes."""
REFUSED = {
    "auto_map": "it names code that comes with the model, which is never run; take a model of transformers itself",
    "quantization_config": "the weights are quantized; take the model in bfloat16 or float32, or as GGUF",
    "compression_config": "the weights are compressed; take the model in bfloat16 or float32, or as GGUF",
}
"""Keys whose remedy is another than choosing another model."""
HARMLESS_METADATA: Table = (
    ("tells what the model is called and where it comes from", "general.name general.author general.version"),
    (
        "tells the same",
        "general.organization general.finetune general.basename general.description general.quantized_by "
        "general.size_label general.license* general.url general.doi general.uuid general.repo_url general.source.* "
        "general.base_model.* general.dataset.* general.datasets general.tags general.languages",
    ),
    ("is known from the types of the arrays", "general.file_type general.quantization_version"),
    ("is where the reader finds the arrays", "general.alignment"),
    (
        "says how to draw text, which is not done",
        "general.sampling.* tokenizer.chat_template* tokenizer.chat_templates",
    ),
    ("tells how the file was quantized", "quantize.imatrix.* imatrix.* mradermacher.*"),
    (
        "names tokens that are never added to a text",
        "tokenizer.ggml.*_token_id tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token "
        "tokenizer.ggml.add_sep_token",
    ),
    ("is for other kinds of tokenizers", "tokenizer.ggml.scores tokenizer.ggml.token_type_count"),
    ("repeats the tokenizer in another form", "tokenizer.huggingface.json"),
    ("numbers the parts of a file that has one", "split.no split.tensors.count"),
    ("is of scaled positions, which are refused", "*.rope.scaling.finetuned"),
)
"""Keys of the metadata of GGUF that are not read."""
FIXED_METADATA: dict[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "split.count": (0, 1),
    "tokenizer.ggml.add_space_prefix": (False,),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),  # llama.cpp scales by it where no type is told
    "rope.scale_linear": (1.0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("Meta AI original pth",),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
}
"""Keys of the metadata with the values that this decoder computes; those of the architecture without its name."""
