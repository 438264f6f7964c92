"""The experiment on top of the library: tasks, training, measures, pages and the commands for them."""

import sys
from pathlib import Path

from softmax_jax.files import typed

_ROOT = Path(__file__).parents[2]
REPOSITORY = _ROOT if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "configs").is_dir() else None
"""The checkout that the package lies in, None where the package is installed without one."""


def program(command: str) -> str:
    """Returns how a command is called: as this one was, from the installed package or as a script of the repository."""
    if sys.argv[0].startswith("softmax-jax"):
        return f"softmax-jax {command}"
    script = Path(sys.argv[0]).with_name(f"{'fit_temperature' if command == 'fit' else command}.py")
    return f"python {typed(script if script.exists() else script.name)}"
