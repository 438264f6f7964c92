"""Presets, one module each: its docstring says what it costs, what score to expect and the exact command."""

import importlib
import pkgutil

from softmax_jax.training.config import Config


def load_presets() -> dict[str, tuple[str, Config]]:
    """Every preset by name: the first line of its docstring, and its settings."""
    modules = {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    return {name: ((module.__doc__ or "").split("\n")[0], module.CONFIG) for name, module in sorted(modules.items())}
