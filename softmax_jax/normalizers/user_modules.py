"""Imports modules of a user, which lie in the working directory, only because the user typed their name.

The directory is never put on `sys.path`. Dozens of packages look for others that are not installed, and a folder on
the path, such as a run that somebody else made, would run whatever it holds under one of these names.
"""

import importlib
import importlib.util
import itertools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from softmax_jax.files import read_text
from softmax_jax.normalizers.checks import shown
from softmax_jax.refusal import Refusal

OF_A_MODULE = re.compile(r"\s*([\w.]{1,255})\s*:(.*)", re.DOTALL)
"""The text of an object that a module holds, such as `my_module:relu`."""
ANY = "any module"
"""What `trust` takes for all texts; it is no text of an object."""
_trusted: set[str] = set()


class UserModules:
    """Finds modules in the working directory, after all other places, for two kinds of callers.

    - `import_typed` finds the module that the user typed.
    - That module finds the modules beside it, while it is imported and also later, as by an import within a function.
      They are sought where it was found, even after the working directory has changed.

    No other module finds anything there, not even one that the user's module imports.
    """

    def __init__(self) -> None:
        self._typed: str | None = None
        self._directories: dict[str, str] = {}
        """Where each module was found, by its first name."""

    def import_typed(self, module: str) -> ModuleType:
        """Imports a module whose name the user typed, from wherever Python finds it, or from the working directory."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)  # after all others
        self._typed = module.partition(".")[0]
        try:
            return importlib.import_module(module)
        finally:
            self._typed = None

    def import_file(self, file: Path) -> ModuleType:
        """Imports a file that the user typed, by its own name. It finds modules that lie beside it."""
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
        """Returns where a module is for the import system, None if it is none of these."""
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
    """Returns the name of the module that imports: the first caller outside the import system."""
    frame = sys._getframe(2)
    while frame and _module_of(frame).partition(".")[0] == "importlib":
        frame = frame.f_back
    return _module_of(frame) if frame else ""


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_FINDER = UserModules()
"""The finder of this process."""


def read_module(module: str, message: str) -> dict[str, Any]:
    """Imports a module, or a file as `path/to/mine.py`, that the user typed and returns what it holds, by name.

    It is sought where Python seeks all modules and last in the working directory, which no other import gains.
    Raises ValueError, in one line that starts with `message`, if the module cannot be imported.
    """
    try:
        imported = _FINDER.import_file(Path(module)) if module.endswith(".py") else _FINDER.import_typed(module)
        return vars(imported)
    except Exception as error:  # of many types, as the module is the user's
        raise Refusal(
            f"{message}: the module {module} cannot be imported ({import_problem(error)}): name one that is installed, "
            "or a file in this directory without its .py"
        ) from error


def import_problem(error: Exception) -> str:
    """Describes in one line why an import failed, and the last place outside of the import system."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    inside = itertools.dropwhile(lambda place: "importlib" not in place, frames)  # less those that asked for it
    places = [place for place in inside if "importlib" not in place]
    return " ".join([f"{type(error).__name__}: {error}", *places[-1:]]).replace("\n", " ")


def trust(*texts: str) -> None:
    """Allows files that are read in this process to name these objects of modules, and fits; `ANY` allows all.

    Objects are normalizers and tasks. Importing a module runs it, so only texts that a person typed are trusted:
    commands do it for their words, `normalizer` and `Config` for code.
    """
    _trusted.update(texts)


def is_trusted(text: str) -> bool:
    """Returns True if a person typed this text in this process."""
    return not _trusted.isdisjoint({text, ANY})


def named_module(text: str) -> str | None:
    """Returns the module of a text such as `my_module:relu`, None for other texts."""
    named = OF_A_MODULE.fullmatch(text)
    return named[1] if named else None


def source_of(module: str) -> str:
    """Returns the source of an imported module; an empty text for one that is not imported or has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return read_text(Path(file)) if file else ""


def require_trust(text: str, module: str | None, file: Path) -> None:
    """Raises ValueError if a file names an object of a module by a text that nobody typed in this process.

    `module` is the one that is imported for this text, None if none is.
    """
    if module and not is_trusted(text):
        raise Refusal(
            f"{file} names {shown(text)}, and importing {module} would run its code: if you trust it, "
            "type that name yourself in a command or in code, or give --trust-code"
        )
