"""Reads presets: files of settings whose docstring says what training costs, what to expect and the exact command.

They lie in `configs` at the top of the repository. The wheel has them beside this module.
"""

import importlib
import importlib.util
from pathlib import Path

from softmax_jax.experiment import REPOSITORY
from softmax_jax.experiment.training.config import Config
from softmax_jax.files import first_line_of_docstring
from softmax_jax.normalizers.user_modules import read_module
from softmax_jax.refusal import Refusal

if REPOSITORY:
    __path__ = [*__path__, str(REPOSITORY / "configs")]

PRESETS = {
    path.stem.removesuffix("_task"): f"{__name__}.{path.stem}"
    for directory in sorted(map(Path, __path__))
    for path in sorted(directory.glob("[!_]*.py"))
}
"""The module of every preset by its name, which is that of the file less `_task`: a file that is called `copy` would
hide Python's own module of that name."""


def register_preset(name: str, module: str) -> None:
    """Adds the preset of a module by a name of its own."""
    PRESETS[name] = module


def preset_summaries() -> dict[str, str]:
    """Returns the first line of the docstring of every preset, by name, without importing it."""
    specs = {name: importlib.util.find_spec(module) for name, module in PRESETS.items()}
    return {name: first_line_of_docstring(Path(spec.origin)) for name, spec in specs.items() if spec and spec.origin}


def load_preset(name: str) -> Config:
    """Returns the settings of a preset: a listed one, or your own as `path/to/mine.py` or `my_module:CONFIG`.

    Raises Refusal if your own file or module cannot be imported, or holds no settings under that name.
    """
    if name in PRESETS:
        return importlib.import_module(PRESETS[name]).CONFIG
    if is_file(name) and not Path(name).is_file():
        raise Refusal(f"the preset is {name}, which is no file: name one of settings, as in configs/quick.py")
    module, attribute = (name, "CONFIG") if is_file(name) else name.partition(":")[::2]
    config = read_module(module, f"the preset is {name}").get(attribute)
    if not isinstance(config, Config):
        kind = "softmax_jax.experiment.training.config.Config"
        raise Refusal(f"the preset is {name}: {module} must hold a {kind} by the name {attribute}")
    return config


def is_file(name: str) -> bool:
    """Returns True for the path of a preset of one's own."""
    return name.endswith(".py") and ":" not in name
