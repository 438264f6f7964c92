"""Presets, one module each: its docstring says what it costs, what score to expect and the exact command."""

import importlib
from pathlib import Path

from softmax_jax.files import first_line_of_docstring
from softmax_jax.training.config import Config


def preset_summaries() -> dict[str, str]:
    """The first line of the docstring of every preset, by name; none is imported."""
    return {path.stem: first_line_of_docstring(path) for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}


def load_preset(name: str) -> Config:
    """The settings of a preset, which imports its module alone."""
    return importlib.import_module(f"{__name__}.{name}").CONFIG
