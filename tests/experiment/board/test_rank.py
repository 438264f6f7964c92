"""The command from a method to its place, on a protocol of two tiny tasks."""

import copy
import dataclasses
import json
import re

import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.board.measure import cell_path, code_of, measure_missing, read_cell
from softmax_jax.experiment.board.protocol import COLUMNS, PROTOCOL, Job, Protocol
from softmax_jax.experiment.commands.rank import Arguments, beside, rank, read_board, write_cells
from softmax_jax.files import write_json
from softmax_jax.normalizers.user_modules import trust
from softmax_jax.refusal import Refusal

SMALL = (("hidden", 8), ("heads", 2))
JOBS = (
    Job("set_complement", "all items", 12, (*SMALL, ("classes", 4)), (1, 2), 8),
    Job("signal", "a pattern", 8, (*SMALL, ("features", 8), ("pooling", "last"), ("sequences", 64)), (1, 2), 8),
)
TINY = Protocol(JOBS, seeds=4)
GOOD = """
import softmax_jax as sj
class Sharper(sj.Scale):
    def of_row(self, row):
        return 1.5
mine = sj.Normalizer(map=sj.softmax, scale=Sharper())
"""
COUNTS_PADDING = """
import math
import softmax_jax as sj
class PaddedLength(sj.Scale):
    def of_row(self, row):
        return math.log(1 + row.logits.shape[row.axis])
mine = sj.Normalizer(map=sj.softmax, scale=PaddedLength())
"""


def made_cell(method, job, protocol, accuracy):
    """A cell as the program writes it, with these accuracies."""
    seeds = {str(n): [accuracy + seed for seed in range(protocol.seeds)] for n in job.lengths}
    column = {"rate": 0.01, "accuracy": seeds, "loss": seeds, "cpu_seconds": 1.0}
    cell = {"method": method, "task": job.name, "protocol": protocol.digest, "code": code_of(method)}
    return cell | {"parameters": 9, "versions": {}} | {name: copy.deepcopy(column) for name in COLUMNS}


def without_times(cell):
    return cell | {column: cell[column] | {"cpu_seconds": 0} for column in COLUMNS}


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Writes a module with a normalizer `mine`, which may be imported; returns its name in a command."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        trust(f"{name}:mine")
        return f"{name}:mine"

    return write


def test_the_digest_is_of_every_setting_of_the_protocol():
    task = dataclasses.replace(JOBS[0], sizes=(*SMALL, ("classes", 5)))
    others = [dataclasses.replace(TINY, seeds=5), dataclasses.replace(TINY, jobs=(task, JOBS[1]))]
    digests = {protocol.digest for protocol in (PROTOCOL, TINY, *others)}
    assert len(digests) == 4
    assert Protocol(copy.deepcopy(JOBS), seeds=4).digest == TINY.digest


def test_what_is_of_another_protocol_is_never_mixed_in(tmp_path):
    other = dataclasses.replace(TINY, seeds=5)
    path = cell_path(tmp_path, "softmax", JOBS[0])
    write_json(path, made_cell("softmax", JOBS[0], other, 50))
    assert read_cell(path, other)["method"] == "softmax"
    for read in (lambda: read_cell(path, TINY), lambda: list(measure_missing(TINY, ["softmax"], tmp_path))):
        with pytest.raises(Refusal, match=f"of protocol {other.digest[:12]}, and this is {TINY.digest[:12]}.*--output"):
            read()
    board = tmp_path / "board.json"
    write_json(board, {"protocol": other.digest, "cells": []})
    with pytest.raises(Refusal, match=r"cannot be mixed .* --all"):
        read_board(board, TINY)


def test_all_and_names_are_refused_together():
    with pytest.raises(Refusal, match="--all is given with ssmax"):
        Arguments(("ssmax",), all=True)


def test_a_method_is_compared_with_the_softmax_of_its_own_machine():
    """There softmax answers 2 points less than on the board, and the method 3 points more than it."""
    board = [made_cell(method, job, TINY, 50) for method in ("softmax", "ssmax") for job in JOBS]
    here = [
        made_cell(method, job, TINY, accuracy) for method, accuracy in (("softmax", 48), ("m:mine", 51)) for job in JOBS
    ]
    frame = beside(board, here)
    assert frame["method"].unique(maintain_order=True).to_list() == ["softmax", "ssmax", "m:mine"]
    assert frame.filter(method="m:mine", seed=1)["accuracy"].unique().to_list() == [54.0]


def test_a_board_is_printed_and_says_what_is_missing(tmp_path, capsys):
    board = tmp_path / "board.json"
    levels = {"softmax": 50, "ssmax": 60, "hardmax": 40}
    cells = [made_cell(method, job, TINY, level) for method, level in levels.items() for job in JOBS]
    write_cells(board, cells, [], TINY)
    rank(Arguments(), TINY, board)
    output = capsys.readouterr().out
    rows = [line.split()[0] for line in output.splitlines() if line.strip().startswith(tuple(levels))]
    assert rows == ["ssmax", "softmax", "hardmax"]
    assert re.search(r"^\d+ methods not measured on every task: left out\.$", output, re.MULTILINE)
    assert output.splitlines()[-1].startswith("Next: ")
    assert "rank my_module:mine" in output.splitlines()[-1]


@pytest.mark.full
def test_a_method_that_counts_padding_is_refused_with_its_counterexample(module, tmp_path):
    name = module("counts_padding", COUNTS_PADDING)
    with pytest.raises(Refusal, match=rf"^{name} breaks .*padded.*: logits .* got .* wanted .*; mend it") as refused:
        rank(Arguments((name,), output=tmp_path / "run"), TINY)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_cells_are_resumed_and_twice_the_same_to_the_bit_and_ranked(tmp_path, capsys):
    protocol, (job, *_) = dataclasses.replace(TINY, jobs=JOBS[:1]), JOBS
    run, board = tmp_path / "run", tmp_path / "board.json"
    softmax, learned = first = [*measure_missing(protocol, ["softmax", "ssmax"], run)]
    assert [np.shape(cell["trained"]["accuracy"]["16"]) for cell in first] == [(4,)] * 2
    assert softmax["trained"]["accuracy"] == softmax["swapped"]["accuracy"]
    assert softmax["swapped"]["rate"] is None
    assert learned["swapped"]["rate"] in protocol.rates
    assert learned["swapped"]["loss"] != softmax["swapped"]["loss"]
    assert learned["parameters"] == softmax["parameters"] + 2  # one number a head
    before = {path: path.stat().st_mtime_ns for path in run.glob("*/*.json")}
    removed = cell_path(run, "ssmax", job)
    removed.unlink()
    again = [*measure_missing(protocol, ["softmax", "ssmax"], run)]
    assert [*map(without_times, again)] == [*map(without_times, first)]
    assert {path for path, time in before.items() if path.stat().st_mtime_ns != time} == {removed}
    levels = {"softmax": 50, "hardmax": 40}
    write_cells(board, [made_cell(name, job, protocol, level) for name, level in levels.items()], [], protocol)
    written = []
    for _ in range(2):
        rank(Arguments(("ssmax",), output=run), protocol, board)
        assert "Of 3 methods ssmax has " in capsys.readouterr().out
        written.append((run / "board.json").read_text())
        removed.unlink()
    assert written[0] == written[1]
    lists = [{cell["method"] for cell in json.loads(written[0])[name]} for name in ("cells", "own")]
    assert lists == [{"softmax", "hardmax"}, {"softmax", "ssmax"}]
    assert set(pl.read_csv(run / "scores.csv")["method"]) == {"softmax", "hardmax", "ssmax"}
    assert (run / "board.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.rare
def test_a_normalizer_of_ones_own_comes_from_its_file_to_its_place(module, tmp_path, capsys):
    """Its cell is measured again when the file has changed."""
    name, run, board = module("good_one", GOOD), tmp_path / "run", tmp_path / "board.json"
    cells = [
        made_cell(method, job, TINY, level) for method, level in (("softmax", 50), ("hardmax", 40)) for job in JOBS
    ]
    write_cells(board, cells, [], TINY)
    rank(Arguments((name,), output=run), TINY, board)
    assert f"Of 3 methods {name} has " in capsys.readouterr().out
    path = cell_path(run, name, JOBS[0])
    cell = read_cell(path, TINY)
    write_json(path, cell | {"code": "of yesterday", "parameters": 0})
    measured = {(made["method"], made["task"]): made for made in measure_missing(TINY, [name], run)}
    assert measured[name, JOBS[0].name]["parameters"] == cell["parameters"]
