"""A baked checkpoint computes under plain softmax what the old one computes with a temperature for each head."""

import json
from typing import Any

import numpy as np
import pytest

from softmax_jax.experiment.language_models import baking
from softmax_jax.experiment.language_models.arrays import LAYER_ARRAYS, MODEL_ARRAYS
from softmax_jax.experiment.language_models.baking import bake
from softmax_jax.refusal import Refusal
from tests.experiment.language_models.plain_llama import TINY, logits_of, softmax, tiny_arrays

TOKENS = np.arange(20) * 7 % 50
THETA = np.array([[1.0, 0.5, 2.0, 1.3], [0.7, 1.0, 1.0, 3.0]])
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": TINY["layers"],
    "num_attention_heads": TINY["heads"],
    "hidden_size": TINY["heads"] * TINY["size"],
}
KINDS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
ARRAYS = tiny_arrays(50, biases=True)


def names_of_transformers():
    names = dict(MODEL_ARRAYS.values())
    for layer in range(TINY["layers"]):
        names |= {f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in LAYER_ARRAYS.values()}
    return names


NAMES = names_of_transformers()


def write_checkpoint(path, kind="F32", files=1, **changes):
    """Writes a directory as transformers does, its arrays in so many files."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    (path / "tokenizer.json").write_text("{}")
    for name in ("pytorch_model.bin", "consolidated.bin"):
        (path / name).write_text("the old weights once more")
    for place in range(files):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name in list(ARRAYS)[place::files]:
            stored = ARRAYS[name].astype(baking.FLOATS[kind]).tobytes()
            shape, offsets = list(ARRAYS[name].shape), [len(data), len(data) + len(stored)]
            header[NAMES[name]] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
            data += stored
        text = json.dumps(header).encode()
        (path / f"model-{place}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_checkpoint(path):
    arrays, own = {}, {theirs: ours for ours, theirs in NAMES.items()}
    for file in path.glob("*.safetensors"):
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:start]).items():
            if name in own:
                first, last = (start + offset for offset in entry["data_offsets"])
                values = np.frombuffer(content[first:last], baking.FLOATS[entry["dtype"]])
                arrays[own[name]] = values.reshape(entry["shape"]).astype(np.float64)
    return arrays


def logits_at(theta):
    layer = iter(theta)
    return logits_of(ARRAYS, TOKENS, 4, 2, weigh=lambda logits: softmax(logits / next(layer)[:, None, None]))


def test_from_a_directory_to_a_baked_directory(tmp_path):
    write_checkpoint(tmp_path / "old", files=2)
    error = bake(tmp_path / "old", THETA, tmp_path / "new", {"texts": "none"})
    new = read_checkpoint(tmp_path / "new")
    np.testing.assert_allclose(logits_of(new, TOKENS, 4, 2), logits_at(THETA), atol=1e-4)
    changed = {name for name in ARRAYS if not np.array_equal(new[name], ARRAYS[name])}
    assert changed == {f"blk.{layer}.attn_q.{part}" for layer in range(2) for part in ("weight", "bias")}
    kept = THETA[0].repeat(TINY["size"]) == 1
    np.testing.assert_array_equal(new["blk.0.attn_q.weight"][kept], ARRAYS["blk.0.attn_q.weight"][kept])
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "baked.json",
        "config.json",
        "model-0.safetensors",
        "model-1.safetensors",
        "tokenizer.json",
    ]
    told = json.loads((tmp_path / "new" / "baked.json").read_text())
    assert told["theta"] == THETA.tolist()
    assert told["texts"] == "none"
    assert told["rounding_error"] == error < 2**-23


@pytest.mark.parametrize(("kind", "bound"), [("F16", 2**-11), ("BF16", 2**-8)])
def test_the_rounding_to_the_type_of_the_file_is_told(tmp_path, kind, bound):
    write_checkpoint(tmp_path / "old", kind)
    assert 0 < bake(tmp_path / "old", THETA, tmp_path / "new") <= bound
    assert bake(tmp_path / "old", 2.0 ** np.round(np.log2(THETA)), tmp_path / "powers") == 0


REFUSED = [
    ({"architectures": ["Gemma2ForCausalLM"]}, "old cannot be baked exactly: it caps its logits softly"),
    ({"architectures": ["GptOssForCausalLM"]}, "each head has a sink"),
    ({"architectures": ["BloomForCausalLM"]}, "adds ALiBi"),
    ({"architectures": ["T5ForConditionalGeneration"]}, "adds a bias of positions"),
    ({"architectures": ["Strange"]}, "'Strange', whose queries are not known: it must be one of Llama"),
    ({"clip_qkv": 8.0}, "clips its queries"),
    ({"qk_layernorm": True}, "normalises its queries behind"),
    ({"auto_map": {"AutoModel": "x.Y"}}, "code that comes with the model"),
    ({"num_hidden_layers": 3}, "has queries of 2 layers and tells of 3"),
    ({"num_attention_heads": None}, "num_attention_heads is None: it must be a whole number"),
    ({"architectures": ["GPT2LMHeadModel"]}, "has queries of 0 layers and tells of 2"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_be_baked_exactly_is_refused_and_nothing_is_written(tmp_path, changes, words):
    write_checkpoint(tmp_path / "old", **changes)
    with pytest.raises(Refusal, match=words):
        bake(tmp_path / "old", THETA, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_numbers_and_files_that_do_not_fit_are_refused(tmp_path):
    write_checkpoint(tmp_path / "old", "F16")
    for theta, output, words in [
        (THETA * 0, "new", "theta has 0.0: each temperature must be a number above 0"),
        (THETA * np.inf, "new", "theta has inf: each temperature"),
        (THETA[:, :3], "new", r"theta has the shape \(2, 3\), and .*old has 2 layers of 4 query heads"),
        (THETA * 1e-9, "new", "would have numbers beyond the type float16"),
        (THETA, "old", "is there already"),
    ]:
        with pytest.raises(Refusal, match=words):
            bake(tmp_path / "old", theta, tmp_path / output)
    weights = tmp_path / "old" / "model-0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(Refusal, match="ends behind the file; download it again"):
        bake(tmp_path / "old", THETA, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
