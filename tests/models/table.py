"""Writes the tables of models under docs/data from a run of their tests: python -m tests.models.table [--torch].

`models.csv` has the models of JAX libraries. With --torch, `torch_models.csv` and docs/any_model.md have those of
transformers in PyTorch, which need another version of it. Further options are those of pytest. A model that is not run
keeps the row that it has. Where a test fails nothing is written.
"""

import csv
import importlib.metadata
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from docs.claims import DATA, ROOT, any_model
from docs.torch_models import torch_table
from softmax_jax.experiment.report.tables import put_into
from softmax_jax.files import read_text, write_csv, write_whole
from tests.models import torch_zoo, zoo

DIFFERENCES = ("hardmax", "ssmax", "entmax15", "gradient")
"""The largest from the model with an edited softmax call, relative to the largest entry."""
COLUMNS = ("model", "version", "softmaxes", "masks", *DIFFERENCES)
TORCH_DIFFERENCES = ("logits", "ssmax", "weights")
"""The largest from PyTorch: of the model, of the model with its softmax edited, and of its weights."""
TORCH_COLUMNS = ("model", "kind", "version", "softmaxes", "masks", *TORCH_DIFFERENCES, "refused")


class Run:
    """Collects what the tests record of each model."""

    def __init__(self):
        self.measured: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.user_properties and (name := re.search(r"\[(.+)\]", report.nodeid)):
            self.measured[name[1]] |= dict(report.user_properties)


def row(name: str, measured: dict[str, Any]) -> list[str]:
    """Returns a line of the table of models of JAX libraries."""
    try:
        version = importlib.metadata.version(name.split()[0])
    except importlib.metadata.PackageNotFoundError:
        version = "on no index"
    differences = [f"{measured[of]:.0e}" if measured[of] else "0" for of in DIFFERENCES]
    return [name, version, measured["uses"], measured["masks"], *differences]


def torch_row(name: str, measured: dict[str, Any]) -> list[str]:
    """Returns a line of the table of models of PyTorch."""
    kind = (torch_zoo.ARCHITECTURES | torch_zoo.REFUSED)[name].kind
    differences = [f"{measured[of]:.0e}" if of in measured else "" for of in TORCH_DIFFERENCES]
    found = [measured.get(of, "") for of in ("uses", "masks")]
    return [name, kind, importlib.metadata.version("transformers"), *found, *differences, measured.get("refused", "")]


class Table(NamedTuple):
    """A file under docs/data, its columns and rows, and the tests that measure them."""

    file: str
    columns: Sequence[str]
    tests: str
    names: Sequence[str]
    row: Callable[[str, dict[str, Any]], list[str]]


TABLES = {
    False: Table("models.csv", COLUMNS, "tests/models/test_models.py", [*zoo.MODELS], row),
    True: Table(
        "torch_models.csv",
        TORCH_COLUMNS,
        "tests/models/test_torch_models.py",
        [*torch_zoo.ARCHITECTURES, *torch_zoo.REFUSED],
        torch_row,
    ),
}
"""By whether the models are of PyTorch."""


def main() -> int:
    run, options = Run(), sys.argv[1:]
    table = TABLES["--torch" in options]
    selected = ["-m", "", "-W", "ignore::pytest.PytestAssertRewriteWarning", table.tests]  # jaxtyping is imported here
    if status := pytest.main([*selected, *(each for each in options if each != "--torch")], plugins=[run]):
        return status
    path = DATA / table.file
    rows = {line[0]: line for line in list(csv.reader(path.read_text().splitlines()))[1:]} if path.exists() else {}
    rows |= {name: table.row(name, run.measured[name]) for name in table.names if name in run.measured}
    write_csv(path, table.columns, [rows[name] for name in table.names if name in rows])
    if table.file == "torch_models.csv":
        page = ROOT / any_model.PAGE
        write_whole(page, put_into(read_text(page), {"torch": torch_table()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
