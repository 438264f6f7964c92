"""Modules of somebody's own, which lie in the working directory and are imported because somebody typed their name.

The directory is never put on `sys.path`. Dozens of packages look for others that are not installed, so that a folder on
the path, such as one with a run that was handed over, runs whatever it holds under one of these names.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType


class OwnModules:
    """Finds modules in the working directory, after all other places, for two that may ask for them.

    - `import_typed` finds the module that somebody typed.
    - A module found so finds those beside it, while it is imported and also later, as by an import within a function.
      They are sought where it was found, whatever the working directory has become.

    No other module finds anything there, not even one that a found module imports.
    """

    def __init__(self) -> None:
        self._typed: str | None = None
        self._directories: dict[str, str] = {}
        """Where each module was found, by its first name."""

    def import_typed(self, module: str) -> ModuleType:
        """Imports a module whose name somebody typed, from wherever Python finds it, or from the working directory."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)  # after all others
        self._typed = module.partition(".")[0]
        try:
            return importlib.import_module(module)
        finally:
            self._typed = None

    def import_file(self, file: Path) -> ModuleType:
        """Imports a file that somebody typed, by its own name. It finds modules that lie beside it."""
        name, directory = file.stem, str(file.resolve().parent)
        if self._directories.get(name) == directory:
            return sys.modules[name]
        taken = importlib.util.find_spec(name)
        if taken and Path(str(taken.origin)).resolve() != file.resolve():
            raise ImportError(f"{name} is the name of another module: rename the file")
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        self._directories[name] = directory
        try:
            return importlib.import_module(name)
        except BaseException:
            del self._directories[name]
            raise

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Returns where a module is, None where it is none of these, as the import system asks it."""
        if path is not None:  # of a package, which knows its own directory
            return None
        beside = self._directories.get(_importing_module().partition(".")[0])
        directory = os.getcwd() if name == self._typed else self._directories.get(name, beside)
        spec = directory and PathFinder.find_spec(name, [directory])
        if not (spec and directory):
            return None
        self._directories[name] = directory
        if spec.loader is None:  # a package without __init__.py, which would else be sought on `sys.path` once more
            spec.submodule_search_locations = list(spec.submodule_search_locations or ())
        return spec


def _importing_module() -> str:
    """Returns the name of the module whose line asks for an import: the first caller outside the import system."""
    frame = sys._getframe(2)
    while frame and _module_of(frame).partition(".")[0] == "importlib":
        frame = frame.f_back
    return _module_of(frame) if frame else ""


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_OWN = OwnModules()
"""The one of this process."""
import_typed, import_file = _OWN.import_typed, _OWN.import_file
