"""Files of pretrained language models: what transformers and llama.cpp read in them, and those that are refused."""

import json
import os
import shutil
import struct
import time
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.language_models.configuration import describe_config, read_architecture
from softmax_jax.experiment.language_models.keys import Keys
from softmax_jax.experiment.language_models.loading import load
from softmax_jax.refusal import Refusal
from tests.experiment.language_models.plain_llama import TINY, logits_of, tiny_arrays
from tests.models.written import TEXT, safetensors, scores_of, tokenizers, vocabulary, write_directory, write_gguf

ARRAYS = tiny_arrays(len(vocabulary()[0]))
HEADS = TINY["heads"], TINY["key_heads"]
QWEN2 = {"architecture": "Qwen2ForCausalLM"}
SLIDES = {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1}
INDEX = "model.safetensors.index.json"


def write_model(path, **changes):
    """Writes a directory, or a GGUF file of an architecture with more metadata."""
    (write_gguf if path.suffix else write_directory)(path, ARRAYS, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "reference"),
    [
        ("x", {"sliding_window": 3}, {}),
        ("x", {"architecture": "MistralForCausalLM", "sliding_window": 3}, {"windows": (3, 3)}),
        ("x", QWEN2 | SLIDES, {"windows": (None, 3)}),
        ("x", {"partial_rotary_factor": 0.5}, {"rotary": 4}),
        ("x.gguf", {"architecture": "qwen2", "more": {"qwen2.rope.dimension_count": 4}}, {"rotary": 4}),
        ("x.gguf", {"more": {"llama.attention.scale": 0.125}}, {"scale": 0.125}),
    ],
)
def test_keys_that_change_the_computation_are_computed(tmp_path, name, changes, reference):
    write_model(tmp_path / name, **changes)
    model = load(str(tmp_path / name))
    tokens = model.encode(TEXT)[:20]
    expected = logits_of(ARRAYS, tokens, *HEADS, base=500.0, **reference)
    np.testing.assert_allclose(scores_of(model, tokens), expected, atol=1e-4)


def test_a_llama_with_a_window_in_its_file_is_that_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": len(vocabulary()[0]), "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**sizes, **heads, rms_norm_eps=1e-5, sliding_window=3)
    tokens = np.arange(20, dtype=np.int32) * 7 % 200
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        module = transformers.FlaxLlamaForCausalLM(config, seed=0)
        expected = module(jnp.asarray(tokens)[None]).logits[0]
    path = tmp_path / "x"
    write_directory(path, ARRAYS)
    settings = json.loads(config.to_json_string()) | {"architectures": ["LlamaForCausalLM"]}
    (path / "config.json").write_text(json.dumps(settings))
    flat = {}
    for names, array in flatten(module.params):
        array = np.asarray(array)
        flat[".".join(names[:-1]) + ".weight"] = np.ascontiguousarray(array.T if names[-1] == "kernel" else array)
    safetensors.save_file(flat, path / "model.safetensors")
    np.testing.assert_allclose(scores_of(load(str(path)), tokens), expected, atol=1e-5)


def flatten(tree, names=()):
    for name, part in tree.items():
        if isinstance(part, dict):
            yield from flatten(part, (*names, name))
        else:
            yield (*names, name), part


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2"])
@pytest.mark.parametrize("window", [{}, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}])
def test_the_keys_that_transformers_writes_are_known_and_mean_the_same(tmp_path, name, window):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4}
    window = window if name == "Qwen2" else {"sliding_window": 8} if window else {}
    theirs = getattr(transformers, f"{name}Config")(**sizes, **window, architectures=[f"{name}ForCausalLM"])
    theirs.save_pretrained(tmp_path)
    values = {key: value for key, value in theirs.to_dict().items() if value is not None}  # with all defaults
    for settings in (json.loads((tmp_path / "config.json").read_text()), values):
        config = Keys(tmp_path, settings)
        ours = describe_config(config, read_architecture(config), 64).sizes
        types = {"Llama": [], "Mistral": ["sliding_attention"] * 4}.get(name) or getattr(theirs, "layer_types", [])
        windowed = tuple(kind == "sliding_attention" for kind in types)
        assert ours.window == (theirs.sliding_window if any(windowed) else None)
        assert ours.windowed == (windowed if any(windowed) and not all(windowed) else None)
        assert (ours.heads, ours.key_heads, ours.context) == (8, 4, theirs.max_position_embeddings)
        assert (ours.base, ours.epsilon) == (theirs.rope_theta, theirs.rms_norm_eps)


def test_a_tokenizer_cuts_and_fills_no_text(tmp_path):
    write_directory(tmp_path / "x", ARRAYS)
    path = str(tmp_path / "x" / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    tokenizer.save(path)
    model = load(str(tmp_path / "x"))
    assert model.decode(model.encode(TEXT)) == TEXT


def test_tokens_that_the_file_defines_are_found_in_a_text(tmp_path):
    tokens, _ = vocabulary()
    named = [*tokens, "<tool>"]
    kinds = [3] + [1] * (len(tokens) - 1) + [4]
    more = {"tokenizer.ggml.tokens": named, "tokenizer.ggml.token_type": kinds}
    write_gguf(tmp_path / "x.gguf", tiny_arrays(len(named)), more=more)
    model = load(str(tmp_path / "x.gguf"))
    assert model.encode("a <tool>b").tolist()[-2] == len(tokens)
    assert model.decode(model.encode("a <tool>b")) == "a <tool>b"


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def test_parts_of_a_model_are_put_together(tmp_path):
    path = tmp_path / "x"
    write_directory(path, ARRAYS)
    arrays, expected = safetensors.load_file(path / WEIGHTS), load(str(path)).parameters
    (path / WEIGHTS).unlink()
    halves = {
        f"model-0000{part}-of-00002.safetensors": {name: arrays[name] for name in list(arrays)[part - 1 :: 2]}
        for part in (1, 2)
    }
    for name, half in halves.items():
        safetensors.save_file(half, path / name)
    for indexed in (False, True):
        if indexed:
            safetensors.save_file(arrays, path / "consolidated.safetensors")  # which is not in the index
            weights = {name: file for file, half in halves.items() for name in half}
            (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
        loaded = load(str(path)).parameters
        np.testing.assert_array_equal(loaded["layers"]["up"], expected["layers"]["up"])
        np.testing.assert_array_equal(loaded["embed"], expected["embed"])
    safetensors.save_file({name: 2 * array for name, array in arrays.items()}, path / WEIGHTS)  # before all parts
    np.testing.assert_array_equal(load(str(path)).parameters["embed"], 2 * expected["embed"])


def holding(name, content):
    """Replaces a file of the directory by one of these bytes."""
    return lambda path: (path / name).write_bytes(content.encode() if isinstance(content, str) else content)


def halved(name):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-100])


def moved(other):
    return lambda path: (path / WEIGHTS).rename(path / other)


def indexed(content):
    """Renames the weights and puts an index beside them."""
    return lambda path: (moved("a.safetensors")(path), (path / INDEX).write_text(content))


def replaced(name, make):
    return lambda path: ((path / name).unlink(), make(path / name))


def with_up(array):
    """Replaces an array of the weights."""

    def change(path):
        arrays = safetensors.load_file(path / WEIGHTS) | {"model.layers.1.mlp.up_proj.weight": array}
        safetensors.save_file(arrays, path / WEIGHTS)

    return change


def with_vocabulary(vocabulary, merges=()):
    model = {"type": "BPE", "vocab": vocabulary, "merges": list(merges)}
    return holding(TOKENIZER, json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def with_a_layer_more(path):
    (path / CONFIG).write_text(json.dumps(json.loads((path / CONFIG).read_text()) | {"num_hidden_layers": 3}))


def with_float8(path):
    """Makes the header tell of another type of the same size, as no writer here has it."""
    with_up(np.zeros((40, 24), np.int8))(path)
    content = (path / WEIGHTS).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + size].replace(b'"I8"', b'"F8_E4M3"').rstrip()
    (path / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])


def with_an_array_twice(path):
    shutil.copy(path / WEIGHTS, path / "b.safetensors")
    moved("a.safetensors")(path)


INDEXED = '{"weight_map": {"model.norm.weight": "%s"}}'
POINTER = "version https://git-lfs.github.com/spec/v1\n"
DIRECTORIES = {
    "more layers than arrays": (with_a_layer_more, "has arrays of 2 layers and tells of 3"),
    "config.json cut off": (halved(CONFIG), "config.json cannot be read"),
    "config.json is a FIFO": (replaced(CONFIG, os.mkfifo), "config.json is a FIFO"),
    "tokenizer.json is a FIFO": (replaced(TOKENIZER, os.mkfifo), "tokenizer.json is a FIFO"),
    "the weights are a directory": (replaced(WEIGHTS, Path.mkdir), "model.safetensors is a directory"),
    "tokenizer.json of {}": (holding(TOKENIZER, "{}"), "tokenizer.json cannot be read: .*Model missing"),
    "a token below zero": (with_vocabulary({"a": -1}), "tokenizer.json cannot be read"),
    "a token without a row": (with_vocabulary({"a": 0, "b": 4_000_000_000}), "the token 'b' is number 4000000000"),
    "a merge of no tokens": (with_vocabulary({"a": 0}, [["x", "y"]]), "tokenizer.json cannot be read"),
    "no tokens": (with_vocabulary({}), "tokenizer.json has no tokens"),
    "a download cut off": (halved(WEIGHTS), "model.safetensors cannot be read"),
    "a pointer of git-lfs": (holding(WEIGHTS, POINTER), "model.safetensors is a pointer of git-lfs"),
    "an empty file": (holding(WEIGHTS, ""), "model.safetensors cannot be read"),
    "a header of 2^60 bytes": (holding(WEIGHTS, struct.pack("<Q", 2**60)), "safetensors cannot be read"),
    "a part missing": (moved("model-00001-of-00002.safetensors"), "00002.* is missing"),
    "many parts": (moved("model-00001-of-99999.safetensors"), "00002-of-99999.* is missing"),
    "an index of an absent file": (indexed(INDEXED % "b.safetensors"), "b.safetensors is missing: download all parts"),
    "an index of a file outside": (indexed(INDEXED % "../x/a.safetensors"), "must name files of the"),
    "an index that leads outside and back": (
        indexed(INDEXED % "a.safetensors/../../x/a.safetensors"),
        "must name files",
    ),
    "an index that is a list": (indexed("[]"), "index.json holds .*: it must be an object"),
    "an array twice": (with_an_array_twice, "both hold the array"),
    "an array of another shape": (with_up(np.ones((40, 23), np.float32)), r"\(40, 23\): it must have"),
    "whole numbers": (with_up(np.ones((40, 24), np.int8)), "up_proj.weight' is of type I8, which is no"),
    "an array of float8": (with_float8, "up_proj.weight' is of type F8_E4M3, which is no weight by itself"),
}


def assert_refused(path, message):
    """A file is refused in one line, before anything large is made."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(Refusal, match=message) as caught:
            load(str(path))
        assert tracemalloc.get_traced_memory()[1] < 2**24
        assert time.perf_counter() - start < 10
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("case", DIRECTORIES)
def test_a_hostile_directory_is_refused(tmp_path, case):
    change, message = DIRECTORIES[case]
    write_directory(tmp_path / "x", ARRAYS)
    change(tmp_path / "x")
    assert_refused(tmp_path / "x", message)


TOKENS, _ = vocabulary()
MORE_TOKENS = {"tokens": [*TOKENS, "x y"], "token_type": None}


def tokenizer(**keys):
    return {"more": {f"tokenizer.ggml.{key}": value for key, value in keys.items()}}


def array(name, value):
    return {"arrays": {name: value}}


def header(form, offset, value):
    """Writes another number into the header of the norm's array."""

    def change(content):
        changed = bytearray(content)
        struct.pack_into(form, changed, content.index(b"output_norm.weight") + 18 + offset, value)
        return changed

    return {"change": change}


def cut_at(end):
    return {"change": lambda content: content[:end]}


GGUFS = {
    "more layers than arrays": ({"more": {"llama.block_count": 3}}, "has arrays of 2 layers and tells of 3"),
    "a token for tokens": (tokenizer(tokens="a"), "tokenizer.ggml.tokens is 'a'"),
    "a token twice": (tokenizer(tokens=[*TOKENS[:-1], TOKENS[0]]), "tokenizer.ggml.tokens has a token twice"),
    "a token without a row": (tokenizer(**MORE_TOKENS), "the token 'x y' is number"),
    "merges without a blank": (tokenizer(merges=["ab"]), "tokenizer.ggml.merges has 'ab'"),
    "merges of no tokens": (tokenizer(merges=["日 本"]), "tokenizer.ggml.merges cannot be read"),
    "types of other tokens": (tokenizer(token_type=[1]), "token_type must have a type from 1 to 6"),
    "an unknown type": (tokenizer(token_type=[9] * len(TOKENS)), "token_type must have a type"),
    "another tokenizer": (tokenizer(model="llama"), "holds the tokenizer 'llama' .'smollm'."),
    "another cut": ({"pre": "tekken"}, "holds the tokenizer 'gpt2' .'tekken'.: only byte-level ones"),
    "scaled positions": (array("rope_freqs.weight", np.ones(4, np.float32)), "scales its rotary positions"),
    "whole numbers": (array("blk.1.ffn_up.weight", np.ones((40, 24), np.int8)), "the quantization I8, which"),
    "an array missing": (array("output_norm.weight", None), "has no array output_norm.weight"),
    "cut off": (cut_at(-100), "is cut off: the array"),
    "cut off in its header": (cut_at(2000), "do not fit into its 2,000 bytes"),
    "a type that gguf does not know": (header("<I", 12, 255), "is of type 255, which gguf does not know"),
    "arrays in the same bytes": (header("<Q", 16, 0), "two arrays have bytes in common"),
    "a shape of 2^60": (header("<Q", 4, 2**60), "is cut off: the array 'output_norm.weight' ends at byte"),
}


@pytest.mark.parametrize("case", GGUFS)
def test_a_hostile_gguf_is_refused(tmp_path, case):
    written, message = GGUFS[case]
    arrays = {name: array for name, array in (ARRAYS | written.get("arrays", {})).items() if array is not None}
    path = tmp_path / "x.gguf"
    write_gguf(path, arrays, more=written.get("more"), pre=written.get("pre", "smollm"))
    if "change" in written:
        path.write_bytes(written["change"](path.read_bytes()))
    assert_refused(path, message)
