"""Writes the table of models in docs/any_model.md from a run of their tests: python -m tests.models.table.

Options are those of pytest. A model that is not run keeps the row that it has. Where a test fails nothing is written.
"""

import importlib.metadata
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.models.zoo import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "any_model.md"
START, END = "<!-- models -->\n", "<!-- /models -->"
HEAD = """\
| model | version | softmaxes | masks | hardmax | SSMax | entmax15 | its gradient |
|---|---|---|---|---|---|---|---|
"""


class Run:
    """Collects what the tests record of each model."""

    def __init__(self):
        self.measured: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties and (name := re.search(r"\[(.+)\]", report.nodeid)):
            self.measured[name[1]] |= dict(report.user_properties)


def row(name: str, measured: dict[str, Any]) -> str:
    """A line of the table."""
    try:
        version = importlib.metadata.version(name.split()[0])
    except importlib.metadata.PackageNotFoundError:
        version = "on no index"
    differences = [measured[method] for method in ("hardmax", "ssmax", "entmax15", "gradient")]
    cells = [name, version, measured["uses"], measured["masks"], *(f"{off:.0e}" if off else "0" for off in differences)]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    run = Run()
    if status := pytest.main(["-m", "models", "tests/models/test_models.py", *sys.argv[1:]], plugins=[run]):
        return status
    before, table, after = re.split(f"{START}|{END}", PAGE.read_text())
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()}
    rows |= {name: row(name, measured) for name, measured in run.measured.items()}
    lines = "".join(f"{rows[name]}\n" for name in MODELS if name in rows)
    PAGE.write_text(f"{before}{START}{HEAD}{lines}{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
