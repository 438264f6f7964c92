"""Finds normalizers of installed packages, which name them in the entry-point group `softmax_jax.normalizers`.

Names are read from the metadata of the packages. A package is imported when one of its names is asked for, and not
before.
"""

import importlib.metadata
from typing import Any

from softmax_jax.normalizers.user_modules import import_problem
from softmax_jax.refusal import Refusal

GROUP = "softmax_jax.normalizers"
"""The entry-point group."""
_loaded: set[str] = set()
"""Names whose packages were imported."""


def package_names() -> list[str]:
    """Returns the names that installed packages add, in alphabetical order. Imports nothing."""
    return sorted(importlib.metadata.entry_points(group=GROUP).names)


def module_of(name: str) -> str | None:
    """Returns the module that an installed package names for a normalizer; None if no package does."""
    entries = importlib.metadata.entry_points(group=GROUP, name=name)
    return next((entry.module for entry in entries), None)


def is_loaded(name: str) -> bool:
    """Returns True if the normalizer of this name came from an installed package."""
    return name in _loaded


def load(name: str) -> tuple[str, Any]:
    """Imports the module that an installed package names for a normalizer; returns the package and what it holds.

    Raises Refusal, in one line that names the package, if several packages claim the name, if the module cannot be
    imported, or if it lacks the object.
    """
    entry, *others = importlib.metadata.entry_points(group=GROUP, name=name)
    package = _package(entry)
    if others:
        packages = ", ".join(sorted([package, *map(_package, others)]))
        raise Refusal(f"normalizer {name!r} is claimed by {packages}: uninstall all but one, or type {entry.value}")
    try:
        value = entry.load()
    except Exception as error:  # of many types, as the package is somebody's own
        raise Refusal(
            f"normalizer {name!r} is named by the package {package}, whose {entry.value} cannot be imported "
            f"({import_problem(error)}): repair the package, or uninstall it"
        ) from error
    _loaded.add(name)
    return package, value


def _package(entry: importlib.metadata.EntryPoint) -> str:
    """Returns name and version of the package of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module
