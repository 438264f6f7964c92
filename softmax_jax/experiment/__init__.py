"""The experiment on top of the library: tasks, training, measures, pages and the commands for them."""

from pathlib import Path

_ROOT = Path(__file__).parents[2]
REPOSITORY = _ROOT if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "configs").is_dir() else None
"""The checkout that the package lies in, None where the package is installed without one."""
