"""What configurations and arrays of pretrained models say, and what is refused, without a package that reads them."""

import dataclasses
import os
import re
import struct
import tracemalloc
from unittest import mock

import numpy as np
import pytest

from softmax_jax.experiment.language_models import metadata as gguf_metadata
from softmax_jax.experiment.language_models.arrays import LAYER_ARRAYS, MODEL_ARRAYS, Stored, read_parameters
from softmax_jax.experiment.language_models.configuration import Description, describe_config, read_architecture
from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.experiment.language_models.gguf_header import read_header
from softmax_jax.experiment.language_models.keys import Keys, read_object
from softmax_jax.refusal import Refusal
from tests.experiment.language_models.plain_llama import TINY, tiny_arrays

CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "head_dim": 8}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}
MISTRAL, QWEN2 = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Mistral", "Qwen2"))
METADATA = {"general.architecture": "qwen2", "qwen2.block_count": 4, "qwen2.context_length": 512}
METADATA |= {"qwen2.attention.head_count": 4, "qwen2.attention.head_count_kv": 2}
METADATA |= {"qwen2.attention.layer_norm_rms_epsilon": 1e-5}
LLAMA = {"general.architecture": "llama"}
SLIDES = {"use_sliding_window": True, "sliding_window": 8}
ALTERNATE = ["full_attention", "sliding_attention"] * 2


def described(path, **changes):
    config = Keys(path / "config.json", CONFIG | changes)
    return describe_config(config, read_architecture(config), 32)


def described_metadata(path, **changes):
    kind = changes.get("general.architecture", "qwen2")
    renamed = {key.replace("qwen2", kind) if isinstance(kind, str) else key: one for key, one in METADATA.items()}
    metadata = Keys(path / "x.gguf", renamed | changes)
    return gguf_metadata.describe_metadata(metadata, gguf_metadata.read_architecture(metadata), 32)


@pytest.mark.parametrize(
    ("changes", "window", "windowed"),
    [
        ({}, None, None),
        ({"sliding_window": 8}, None, None),  # a Llama has none
        (MISTRAL, 4096, None),
        (MISTRAL | {"sliding_window": 8}, 8, None),
        (QWEN2 | SLIDES, None, None),  # from the 28th layer on
        (QWEN2 | SLIDES | {"max_window_layers": 2}, 8, (False, False, True, True)),
        (QWEN2 | SLIDES | {"layer_types": ALTERNATE}, 8, (False, True, False, True)),
        (QWEN2 | {"use_sliding_window": True, "layer_types": ALTERNATE}, 4096, (False, True, False, True)),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None, None),
    ],
)
def test_each_architecture_has_its_own_window(tmp_path, changes, window, windowed):
    sizes = described(tmp_path, **changes).sizes
    assert (sizes.window, sizes.windowed) == (window, windowed)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"rotary": None, "scale": None, "base": 10_000.0, "key_heads": 2}),
        ({"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 500}}, {"rotary": 2, "base": 500.0}),
        ({"partial_rotary_factor": 0.3}, {"rotary": 2}),  # of 2.4, as transformers and vLLM truncate
        ({"rotary_dim": 4}, {"rotary": 4}),
        ({"num_key_value_heads": None}, {"key_heads": 4}),
        ({"qwen2.rope.dimension_count": 8}, {"rotary": None}),
        ({"qwen2.rope.dimension_count": 4}, {"rotary": 4}),
        ({"qwen2.attention.sliding_window": 512}, {"window": None}),  # which hides nothing
        (LLAMA | {"llama.attention.scale": 0.1}, {"scale": 0.1}),
        (LLAMA | {"llama.attention.scale": 0.0}, {"scale": None}),
    ],
)
def test_sizes_are_those_of_the_configuration_or_the_metadata(tmp_path, changes, expected):
    gguf = any("." in key for key in changes)
    sizes = (described_metadata if gguf else described)(tmp_path, **changes).sizes
    assert dataclasses.asdict(sizes).items() >= expected.items()


def test_key_heads_that_are_not_told_are_those_of_transformers(tmp_path):
    told = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"} | {"num_attention_heads": 16}
    for name, key_heads in (("Llama", 16), ("Mistral", 8)):
        config = Keys(tmp_path, told | {"architectures": [f"{name}ForCausalLM"]})
        assert describe_config(config, read_architecture(config), 128).sizes.key_heads == key_heads
    assert described(tmp_path, **MISTRAL, num_key_value_heads=None).sizes.key_heads == 4  # which is told


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": None}, "holds the architecture 'unknown': it must be one of LlamaForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM': it must name one"),
        ({"model_type": "mixtral"}, "model_type is 'mixtral': this decoder computes 'llama' only"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map is {'AutoModel': 'x.Y'}: it names code that comes with"),
        ({"attention_multiplier": 0.1}, "attention_multiplier is 0.1: this decoder does not know the key"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': this decoder computes 'silu' or 'swish' only"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True: it must be"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0: it must be a whole number from 1 to 10000"),
        ({"num_hidden_layers": None}, "does not say num_hidden_layers"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5: the queries have 32 features"),
        ({"num_attention_heads": 32}, "num_attention_heads is 32: the queries have 32 features"),  # of size 1
        ({"num_key_value_heads": 3}, "4 heads and 3 by num_key_value_heads: these must divide"),
        ({"head_dim": 16}, "heads have 16 features by the file and 8 by its queries"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan: it must be a number from 1e-30 to 1"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 500}}, "rope_theta is 10000.0: it is 500 among"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling is .* scales the rotary positions"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters is .* scales the rotary"),
        ({"rope_parameters": [1]}, "rope_parameters is .1.: it must be an object"),
        ({"rotary_dim": 3}, "3 of 8 features of a head turn .rotary_dim.: they turn in pairs"),
        ({"rotary_dim": 2, "partial_rotary_factor": 0.5}, "rotary_dim is 2: partial_rotary_factor gives 4 of 8"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes': it must be true or false"),
        ({"layer_types": ALTERNATE}, "layer_types is .* the window to other layers"),  # in a Llama
        ({"layer_types": ["full_attention"]}, "layer_types is .* a list of 4 types"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types is .* this decoder computes full_attention"),
        (MISTRAL | {"sliding_window": 8, "use_sliding_window": False}, "use_sliding_window is False"),
        (QWEN2 | {"layer_types": ALTERNATE}, "layer_types is .* the window to other layers"),
        (QWEN2 | SLIDES | {"max_window_layers": -1}, "max_window_layers is -1: it must be"),
        # Metadata of GGUF
        ({"general.architecture": None}, "does not say general.architecture"),
        ({"general.type": "adapter"}, "general.type is 'adapter': this decoder computes 'model' only"),
        ({"qwen2.attention.head_count_kv": 3}, "4 heads and 3 by qwen2.attention.head_count_kv"),
        ({"qwen2.attention.key_length": 16}, "heads have 16 features by the file and 8 by its queries"),
        ({"qwen2.attention.value_length": 16}, "value_length is 16: queries have 8 features a head"),
        ({"qwen2.attention.scale": 0.1}, "qwen2.attention.scale is 0.1"),
        ({"qwen2.attention.sliding_window": 8}, "qwen2.attention.sliding_window is 8: whether the model has it"),
        ({"qwen2.rope.dimension_count": 3}, "3 of 8 features of a head turn .qwen2.rope.dimension_count."),
        (LLAMA | {"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4: a llama turns all 8 features"),
        ({"llama.attention.scale": 0.1}, "llama.attention.scale is 0.1: this decoder does not know the key"),
        ({"tokenizer.ggml.add_space_prefix": True}, "tokenizer.ggml.add_space_prefix is True"),
        ({"general.a\nb": 1}, r"general.a.nb is 1: this decoder does not know the key"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused_by_its_key(tmp_path, changes, said):
    gguf = any("." in key for key in changes)
    with pytest.raises(Refusal, match=f"^{re.escape(str(tmp_path))}/{'x.gguf' if gguf else 'config.json'}.*{said}"):
        (described_metadata if gguf else described)(tmp_path, **changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", r"holds \[\]: it must be an object"),
        ("{", "cannot be read: Expecting property name"),
        ('{"a": 1, "b": 2, "a": 3}', "it has the key 'a' twice"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit"),
        ("[" * 100_000, "it is nested too deeply"),
        ("version https://git-lfs.github.com/spec/v1\n", "is a pointer of git-lfs, not the file: fetch it with git"),
        ("{" + ", ".join(f'"{key}": 1' for key in (*range(100_000), "a", "a")) + "}", "the key 'a' twice"),
        ("<!doctype html>", "is a web page, not the file"),
        (" " * (2**24 + 1), "has 16,777,217 bytes: a file of its kind may have at most"),
    ],
)
def test_a_file_that_holds_no_object_is_refused(tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(Refusal, match=said):
        read_object(path)


@pytest.mark.parametrize("read", [read_object, read_header])
def test_only_regular_files_are_read(tmp_path, read):
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for problem in ("directory is a directory", "fifo is a FIFO", "absent cannot be read: No such file"):
        with pytest.raises(Refusal, match=problem):
            read(tmp_path / problem.split()[0])


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_bytes(keys=b"", arrays=b"", count=None, number=0, version=3):
    """A GGUF of these keys and arrays, of which there are `count` and `number`."""
    return b"GGUF" + struct.pack("<IQQ", version, number, bool(keys) if count is None else count) + keys + arrays


def array_bytes(kind, count, entries=b""):
    return text("general.tags") + struct.pack("<IIQ", 9, kind, count) + entries


def place_bytes(name="a", shape=(2,), kind=0, start=0):
    return text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, start)


KEY = text("general.name") + struct.pack("<I", 8) + text("x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read: it is too short"),
        (b"<html>404 not found</html>", "is a web page, not the file"),
        (b"version https://git-lfs.github.com/spec/v1", "is a pointer of git-lfs"),
        (b"PK\3\4" * 10, "cannot be read: it does not start as a GGUF does"),
        (gguf_bytes(version=1), "is of version 1 of GGUF: it must be 2 or 3"),
        (gguf_bytes(count=2**60), "it claims 1,152,921,504,606,846,976 keys, more than 65,536"),
        (gguf_bytes(number=3), "8 bytes do not fit into its 24 bytes"),
        (gguf_bytes(struct.pack("<Q", 2**60)), "bytes do not fit into its 32 bytes"),
        (gguf_bytes(KEY + KEY, count=2), "the key 'general.name' is there twice"),
        (gguf_bytes(KEY[:-1] + b"\xff"), "a text is not in UTF-8"),
        (gguf_bytes(text("x") + struct.pack("<I", 13)), "there is no type of metadata 13"),
        (gguf_bytes(array_bytes(0, 2**60)), "an array claims 1,152,921,504,606,846,976 entries, more than 16,777,216"),
        (gguf_bytes(array_bytes(8, 2**24)), "16,777,216 texts do not fit into"),
        (gguf_bytes(array_bytes(10, 2**24)), "16,777,216 numbers do not fit into"),
        (gguf_bytes(array_bytes(9, 1, struct.pack("<IQ", 0, 0))), "there is an array of type 9"),
        (gguf_bytes(arrays=place_bytes(shape=()), number=1), "the array 'a' has 0 axes"),
        (gguf_bytes(arrays=place_bytes(shape=(2, 0)), number=1), "the array 'a' is there twice or is empty"),
        (gguf_bytes(arrays=2 * place_bytes(), number=2), "the array 'a' is there twice or is empty"),
        (gguf_bytes(text("general.alignment") + struct.pack("<II", 4, 0)), "general.alignment is 0"),
    ],
)
def test_a_header_that_claims_more_than_it_holds_is_refused_before_anything_is_made(tmp_path, content, said):
    (tmp_path / "x.gguf").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match=said):
            read_header(tmp_path / "x.gguf")
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_a_header_is_read(tmp_path):
    keys = KEY + array_bytes(8, 2, text("a") + text("b")) + text("y") + struct.pack("<If", 6, 0.5)
    arrays = place_bytes("a", (3, 2), 1) + place_bytes("b", (4,), 0, 32)
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(keys, arrays, 3, 2))
    header = read_header(tmp_path / "x.gguf")
    assert header.metadata == {"general.name": "x", "general.tags": ["a", "b"], "y": 0.5}
    start = -(-len(gguf_bytes(keys, arrays, 3, 2)) // 32) * 32
    assert header.places == {"a": ((2, 3), 1, start), "b": ((4,), 0, start + 32)}


DESCRIBED = Description(Sizes(TINY["heads"], TINY["key_heads"], 64), TINY["layers"], {}, None, True)


def stored(arrays, path):
    return {name: Stored(array.shape, "F32", path, lambda array=array: array) for name, array in arrays.items()}


def parameters(arrays, path, **changes):
    return read_parameters(stored(arrays, path), dataclasses.replace(DESCRIBED, **changes), "blk", 0, path)


def test_arrays_become_parameters(tmp_path):
    arrays = tiny_arrays(50, biases=True, tied=False) | {"blk.1.attn_rot_embd.weight": np.zeros(4, np.float32)}
    made = parameters(arrays, tmp_path, axes={"width": ("embedding_length", TINY["width"])})
    assert made.keys() == {*MODEL_ARRAYS, "layers"}
    assert made["layers"].keys() == LAYER_ARRAYS.keys()
    np.testing.assert_array_equal(made["layers"]["up"][1], arrays["blk.1.ffn_up.weight"])
    same = tiny_arrays(50) | {"output.weight": arrays["token_embd.weight"]}
    assert "scores" not in parameters(same, tmp_path, tied=True)  # which the embedding gives


NAN = np.full((50, TINY["width"]), np.nan, np.float32)


@pytest.mark.parametrize(
    ("more", "changes", "said"),
    [
        ({"token_embd.weight": None}, {}, "has no array token_embd.weight"),
        ({"blk.1.attn_k.bias": None}, {}, "has no array blk.1.attn_k.bias"),
        ({}, {"layers": 3}, "has arrays of 2 layers and tells of 3"),
        ({"blk.4.ffn_up.weight": NAN}, {"layers": 3}, "has arrays of 3 layers and tells of 3"),
        ({}, {"tied": False}, "tie_word_embeddings is not true, which needs the array output.weight"),
        ({"output.weight": np.ones_like(NAN)}, {"tied": True}, "embeddings is true, and output.weight is another"),
        ({"blk.0.attn_q.weight_scale": np.ones(8, np.float32)}, {}, "holds the array 'blk.0.attn_q.weight_scale'"),
        ({}, {"biases": False}, "holds the array 'blk.0.attn_q.bias'"),
        ({"token_embd.weight": NAN}, {}, "the array token_embd.weight has entries that are not finite"),
        ({"token_embd.weight": NAN[0]}, {}, r"'token_embd.weight' has the shape \(24,\): it must have two axes"),
        ({"blk.1.attn_norm.weight": np.ones(23, np.float32)}, {}, r"has the shape \(23,\): it must have \(24,\)"),
        ({}, {"axes": {"width": ("hidden_size", 32)}}, "hidden_size is 32, and its arrays have 24"),
    ],
)
def test_arrays_that_are_missing_unknown_or_damaged_are_refused_by_name(tmp_path, more, changes, said):
    arrays = {name: one for name, one in (tiny_arrays(50, biases=True) | more).items() if one is not None}
    with pytest.raises(Refusal, match=said):
        parameters(arrays, tmp_path, **changes)


def test_nothing_is_read_of_a_model_that_a_header_refuses(tmp_path):
    read = mock.Mock(side_effect=AssertionError)
    arrays = {name: one._replace(read=read) for name, one in stored(tiny_arrays(50), tmp_path).items()}
    arrays["output.weight"] = Stored((10**12, 24), "F32", tmp_path, read)
    with pytest.raises(Refusal, match="it must have"):
        read_parameters(arrays, DESCRIBED, "blk", 0, tmp_path)
