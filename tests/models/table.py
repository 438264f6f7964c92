"""Writes the table of models, docs/data/models.csv, from a run of their tests: python -m tests.models.table.

Options are those of pytest. A model that is not run keeps the row that it has. Where a test fails nothing is written.
"""

import csv
import importlib.metadata
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from softmax_jax.files import write_csv
from tests.models.zoo import MODELS

TABLE = Path(__file__).parents[2] / "docs" / "data" / "models.csv"
DIFFERENCES = ("hardmax", "ssmax", "entmax15", "gradient")
"""The largest from the model with an edited softmax call, relative to the largest entry."""
COLUMNS = ("model", "version", "softmaxes", "masks", *DIFFERENCES)


class Run:
    """Collects what the tests record of each model."""

    def __init__(self):
        self.measured: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties and (name := re.search(r"\[(.+)\]", report.nodeid)):
            self.measured[name[1]] |= dict(report.user_properties)


def row(name: str, measured: dict[str, Any]) -> list[str]:
    """Returns a line of the table."""
    try:
        version = importlib.metadata.version(name.split()[0])
    except importlib.metadata.PackageNotFoundError:
        version = "on no index"
    differences = [f"{measured[of]:.0e}" if measured[of] else "0" for of in DIFFERENCES]
    return [name, version, measured["uses"], measured["masks"], *differences]


def main() -> int:
    run = Run()
    if status := pytest.main(["-m", "", "tests/models/test_models.py", *sys.argv[1:]], plugins=[run]):
        return status
    rows = {line[0]: line for line in list(csv.reader(TABLE.read_text().splitlines()))[1:]}
    rows |= {name: row(name, measured) for name, measured in run.measured.items()}
    write_csv(TABLE, COLUMNS, [rows[name] for name in MODELS if name in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
