"""Presets, one module each: its docstring says what it costs, what score to expect and the exact command."""

import importlib
from pathlib import Path

from softmax_jax.files import first_line_of_docstring
from softmax_jax.normalizers.registry import content_of
from softmax_jax.refusal import Refusal
from softmax_jax.tasks import in_repository
from softmax_jax.training.config import Config

HERE = Path(__file__).parent
PRESETS = tuple(sorted(path.stem for path in HERE.glob("[!_]*.py")))
"""The names of the presets of the package, also of those that need the repository."""


def preset_summaries() -> dict[str, str]:
    """The first line of the docstring of every preset that can run here, by name; the repository imports none."""
    names = [name for name in PRESETS if in_repository() or loads(name)]
    return {name: first_line_of_docstring(HERE / f"{name}.py") for name in names}


def loads(name: str) -> bool:
    """Says whether a preset of the package is one of a task that stands here."""
    try:
        return bool(load_preset(name))
    except Refusal:
        return False


def load_preset(name: str) -> Config:
    """The settings of a preset, whose module alone is imported: one of the package, or your own as `my_module:CONFIG`.

    Raises ValueError if a module of your own cannot be imported or holds no settings under that name.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        return importlib.import_module(f"{__name__}.{name}").CONFIG
    config = content_of(module, f"the preset is {name}").get(attribute)
    if not isinstance(config, Config):
        raise Refusal(f"the preset is {name}: {module} must hold a softmax_jax.training.config.Config of that name")
    return config
