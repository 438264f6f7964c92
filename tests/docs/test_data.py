"""The data of the pages: where each file comes from, and that pages say what it holds."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from docs import manifest
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.temperature import checkpoint_sha256

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
MANIFEST = json.loads((DATA / "manifest.json").read_text())
NAMES = {
    "softmax": "softmax",
    "adaptive temperature": "adaptive",
    "adaptive, refit by the true item": "adaptive_target",
    "adaptive, refit to ≤ 16 items": "adaptive_refit_train",
    "adaptive, refit to all lengths": "adaptive_refit",
    "SSMax, s = 1/log 16": "ssmax",
    "hardmax": "hardmax",
}
PUBLISHED = re.compile(r"^\*(published|no model)")
"""Rows in italics, which no model here answered."""


FILES = sorted(
    str(path.relative_to(DATA)) for path in DATA.rglob("*") if path.is_file() and path.name != "manifest.json"
)


def test_every_file_has_an_entry():
    assert sorted(MANIFEST) == FILES


@pytest.mark.parametrize("file", MANIFEST)
def test_a_file_is_the_one_that_was_written_and_says_where_it_comes_from(file: str):
    entry = MANIFEST[file]
    assert manifest.sha256(file) == entry["sha256"], f"run the command of {file}, then python -m docs.manifest {file}"
    assert manifest.lacking(entry) == set()
    assert entry.keys() <= {*manifest.ALWAYS, *sum(manifest.KINDS.values(), ()), "checkpoints", "key", "note"}
    assert set(entry.get("from", ())) <= MANIFEST.keys()


WITHOUT_SEEDS = {
    "paper.json",
    *(f"polynomial/{name}.csv" for name in ("coefficients", "control", "curves", "sensitivity", "used")),
}
"""Files on trained models that hold intervals or counts over all seeds."""
OF_SEEDS = [file for file, entry in MANIFEST.items() if entry["kind"] == "models" and file not in WITHOUT_SEEDS]


@pytest.mark.parametrize("file", OF_SEEDS)
def test_a_file_on_trained_models_has_the_seeds_that_it_says(file: str):
    said, seeds = MANIFEST[file]["seeds"], pl.read_csv(DATA / file, columns=["seed"])["seed"].n_unique()
    assert str(said).startswith(str(seeds))


def test_an_entry_is_written_only_with_what_its_kind_asks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "new.csv").write_text("n,accuracy\n")
    (tmp_path / "manifest.json").write_text("{}")
    for name, value in {"DATA": tmp_path, "ROOT": tmp_path, "PATH": tmp_path / "manifest.json"}.items():
        monkeypatch.setattr(manifest, name, value)
    words = shlex.split("docs.manifest new.csv --kind 'means as printed' --command x --commit y --seeds 3")
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        manifest.main()
    assert "new.csv: give --machine, --sets" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*words, "--machine", "2 CPU cores", "--sets", "64"])
    manifest.main()
    entry = json.loads((tmp_path / "manifest.json").read_text())["new.csv"]
    assert (entry["sets"], entry["seeds"], manifest.lacking(entry)) == (64, 3, set())


@pytest.mark.full
def test_the_checkpoints_that_files_name_are_those_that_are_shipped():
    named = {item for entry in MANIFEST.values() for item in entry.get("checkpoints", {}).items()}
    shipped = {name: digest for name, digest in named if (SHIPPED / name).is_dir()}
    assert shipped.keys() >= {"paper", "paper_float32", "frontier", "near_ties"}
    for name, digest in shipped.items():
        assert checkpoint_sha256(load_checkpoint(SHIPPED / name)[1]) == digest


def tables_of_means() -> Iterator[tuple[str, str, list[list[str]]]]:
    """The tables of the README and the pages whose mark names a file: page, file, cells."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text()
        for file, table in re.findall(r"<!-- means of ([\w/.]+) -->\n((?:\|.*\n)+)", text):
            lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
            yield page.name, file, [lines[0], *lines[2:]]


TABLES = list(tables_of_means())
assert {page for page, *_ in TABLES} >= {"README.md", "reproduction.md"}


@pytest.mark.parametrize(("page", "file", "table"), TABLES, ids=[f"{page}-{file}" for page, file, _ in TABLES])
def test_a_table_of_means_has_those_of_its_file(page: str, file: str, table: list[list[str]]):
    frame = pl.read_csv(DATA / Path(file).relative_to("data"))
    means = {(name, n): mean for name, n, mean in frame.group_by("normalizer", "n").agg(pl.mean("accuracy")).rows()}
    lengths = [int(cell.replace(",", "")) for cell in table[0][1:]]
    rows = [row for row in table[1:] if not PUBLISHED.match(row[0])]
    assert len(rows) >= 2
    for label, *cells in rows:
        for n, cell in zip(lengths, cells):
            decimals = len(cell.partition(".")[2])
            assert cell == f"{means[NAMES[label], n]:.{decimals}f}"
