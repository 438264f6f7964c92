"""Ranks normalizers on the board: seven small tasks, each trained with it and swapped in after softmax."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import tyro

from softmax_jax.experiment import program
from softmax_jax.experiment.board.measure import cell_path, measure_missing, read_cell
from softmax_jax.experiment.board.order import Order, frame_of_cells, order_methods
from softmax_jax.experiment.board.protocol import COLUMNS, PROTOCOL, Protocol
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import RESULTS, check_directory, counted, typed_path
from softmax_jax.experiment.commands.parse import each_once, parse
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.board import board_chart, board_table, sentences
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.training.progress import plain_console, with_progress
from softmax_jax.files import read_json, typed, write_csv, write_whole
from softmax_jax.laws.checker import check
from softmax_jax.normalizers.registry import all_names, imported_for, normalizer
from softmax_jax.refusal import Refusal

SHIPPED_BOARD = Path(__file__).parents[1] / "board" / "board.json"
FIRST = (
    "softmax",
    "adaptive",
    "ssmax",
    "softmax1",
    "entmax15",
    "sparsemax",
    "softpick",
    "sigmoid",
    "hardmax",
    "asentmax",
    "sink_softmax",
    "top_k",
    "sqrt_ssmax",
    "qassmax",
    "ssa",
    "length_scaled",
    "signed_l1",
    "stieltjes",
)
"""The methods that `--all` measures first."""
WIDTH = 150
TIMES = "times.csv"
"""Lies beside board.json, which is the same to the bit when a board is measured again on one machine."""
COMMAND = "softmax-jax rank"
Cells = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names to measure, with numbers where wanted: "ssmax(s=0.43)"; your own as my_module:mine. Without a name the
    board that ships is printed, or that of the cells in --output."""
    all: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Measure every method of the board; goes on where it was stopped."""
    output: Path | None = None
    """Directory for cells, which are kept and used again, and for picture, JSON and CSV; results/rank by default."""

    def __post_init__(self) -> None:
        if self.normalizers:
            each_once("the list of normalizers", self.normalizers)
        if self.all and self.normalizers:
            raise Refusal(
                f"--all is given with {self.normalizers[0]}: it measures every name, so leave one of both out"
            )
        check_directory("--output", self.directory)

    @property
    def directory(self) -> Path:
        """The directory of the cells."""
        return self.output or RESULTS / "rank"

    @property
    def methods(self) -> list[str]:
        """The methods to measure, in order."""
        if not self.all:
            return list(self.normalizers)
        names = all_names()
        return [*(name for name in FIRST if name in names), *(name for name in names if name not in FIRST)]


def require_sound(name: str) -> None:
    """Raises Refusal, with the counterexample, for a method of somebody's own that breaks a promise."""
    method = normalizer(name)
    if imported_for(name) and (broken := check(method).broken):
        promise = broken[0]
        evidence = " ".join(promise.evidence.split())
        remedy = f"mend it; softmax-jax check {typed(name)} shows all"
        raise Refusal(f"{name} breaks a promise, {promise.name}: {evidence}; {remedy}")


def read_board(path: Path, protocol: Protocol) -> list[dict[str, Any]]:
    """Returns the cells of a board, with their times. Raises Refusal for one of another protocol."""
    board = read_json(path, "protocol", "cells")
    if board["protocol"] != protocol.digest:
        raise Refusal(
            f"{path} is of protocol {board['protocol'][:12]}, and this is {protocol.digest[:12]}: it cannot be mixed "
            f"with cells of this one, so measure the board with {COMMAND} --all"
        )
    times = read_csv(path.with_name(TIMES), "method", "task", *COLUMNS)
    seconds_by_cell = {(method, task): seconds for method, task, *seconds in times.rows()}
    return [with_seconds(cell, seconds_by_cell[cell["method"], cell["task"]]) for cell in board["cells"]]


def with_seconds(cell: Mapping[str, Any], seconds: Sequence[float]) -> dict[str, Any]:
    """Returns a cell with the CPU seconds of its columns."""
    return {**cell} | {name: cell[name] | {"cpu_seconds": value} for name, value in zip(COLUMNS, seconds)}


def without_seconds(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a cell without the CPU seconds of its columns."""
    seconds = "cpu_seconds"
    return {**cell} | {name: {key: value for key, value in cell[name].items() if key != seconds} for name in COLUMNS}


def cells_of(directory: Path, protocol: Protocol, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the cells of these methods that lie in a directory."""
    paths = [cell_path(directory, method, job) for method in methods for job in protocol.jobs]
    return [read_cell(path, protocol) for path in paths if path.exists()]


def beside(board: Cells, own: Cells) -> pl.DataFrame:
    """Returns the accuracies of a board with those of methods that were measured on this machine beside softmax.

    A method is compared with the softmax of its own machine. Another machine rounds otherwise, so its softmax may
    answer a little more or less than that of the board, by seed and length: the method is moved by that difference.
    """
    ours, theirs = frame_of_cells(own), frame_of_cells(board)
    keys = ["task", "column", "n", "seed"]
    softmax = ours.filter(method=BASELINE).select(*keys, here="accuracy")
    moved = softmax.join(theirs.filter(method=BASELINE).select(*keys, there="accuracy"), keys)
    placed = ours.filter(pl.col("method") != BASELINE).join(moved, keys, maintain_order="left")
    placed = placed.with_columns(accuracy=(pl.col("accuracy") + pl.col("there") - pl.col("here")).clip(0, 100))
    return pl.concat([theirs, placed.select(theirs.columns)])


def ordered(cells: Cells, own: Cells) -> Cells:
    """Returns the cells of a board with those of methods that are placed among them; softmax is there already."""
    return [*cells, *(cell for cell in own if cell["method"] != BASELINE)]


def costs_of(cells: Cells) -> dict[str, tuple[int, float]]:
    """Returns the most parameters of a model, and the CPU seconds of all cells, by method."""
    costs: dict[str, tuple[int, float]] = {}
    for cell in cells:
        parameters, seconds = costs.get(cell["method"], (0, 0.0))
        spent = sum(cell[column]["cpu_seconds"] for column in COLUMNS)
        costs[cell["method"]] = max(parameters, cell["parameters"]), seconds + spent
    return costs


def rank(arguments: Arguments, protocol: Protocol = PROTOCOL, shipped: Path = SHIPPED_BOARD) -> None:
    """Checks, measures what is missing, orders, prints, writes."""
    directory, names = arguments.directory, arguments.methods
    KEPT.keep()
    for name in names:
        require_sound(name)
    mine = [name for name in arguments.normalizers if name != BASELINE]
    if arguments.all:
        cells, own = measured(protocol, names, directory), []
    elif names:
        own = measured(protocol, names, directory)
        cells = [cell for cell in read_board(shipped, protocol) if cell["method"] not in mine]
    elif arguments.output:
        cells, own = cells_of(directory, protocol, all_names()), []
    else:
        cells, own = read_board(shipped, protocol), []
    frame = beside(cells, own) if own else frame_of_cells(cells)
    if (BASELINE, len(protocol.jobs)) not in frame.group_by("method").agg(pl.n_unique("task")).rows():
        raise Refusal(f"{directory} has no cells of {BASELINE} on every task: type {COMMAND} --all first")
    order = order_methods(frame, protocol.floors)
    print_order(order, ordered(cells, own), mine, protocol)
    if names or arguments.output:
        write_board(directory, order, cells, own, protocol)
    ranked = f"{program('evaluate')} --normalizers softmax {typed(mine[0])}" if mine else f"{COMMAND} my_module:mine"
    print(f"Next: {ranked}")


def measured(protocol: Protocol, names: Sequence[str], directory: Path) -> list[dict[str, Any]]:
    """Returns the cells of softmax and of these methods, measuring those that are missing."""
    methods = [BASELINE, *(name for name in names if name != BASELINE)]
    labels = [f"{method} on {job.name}" for method in methods for job in protocol.jobs]
    cells = with_progress(measure_missing(protocol, methods, directory), [1] * len(labels), "measuring", labels)
    return list(cells)


def print_order(order: Order, cells: Cells, mine: Sequence[str], protocol: Protocol) -> None:
    """Prints the table and the sentences."""
    console = plain_console(width=max(plain_console().width, WIDTH))
    missing = len(all_names()) + len([name for name in mine if name not in all_names()])
    missing -= order.scores["method"].n_unique()
    seeds = counted(protocol.seeds, "seed")
    print(f"Mean rank by column (95 % interval), gains over softmax trained/swapped in points, {seeds}; * is shown.")
    console.print(board_table(order, costs_of(cells), mine))
    if missing > 0:
        print(f"{counted(missing, 'method')} not measured on every task: left out.")
    for sentence in sentences(order, mine):
        console.print(sentence, highlight=False, soft_wrap=True)


def write_board(directory: Path, order: Order, cells: Cells, own: Cells, protocol: Protocol) -> None:
    """Writes the cells, their times, the order and its picture; prints where.

    Arguments:
        directory: Gets board.json, times.csv, places.csv, scores.csv, board.png and board.svg.
        order: The order of the methods.
        cells: The cells of the board.
        own: The cells that were measured on this machine to be placed among them, softmax's too.
        protocol: The protocol of both.
    """
    path = directory / "board.json"
    write_cells(path, cells, own, protocol)
    write_order(directory, order)
    save_chart(board_chart(order), directory / "board")
    print(f"Picture: {typed_path(directory / 'board.png')}; JSON: {typed_path(path)}, with places.csv beside it")


def write_order(directory: Path, order: Order) -> None:
    """Writes places.csv and scores.csv, in four digits."""
    for name, frame in {"places": order.places, "scores": order.scores}.items():
        rounded = frame.with_columns(pl.selectors.float().round_sig_figs(4))
        write_csv(directory / f"{name}.csv", frame.columns, rounded.rows())


def write_cells(path: Path, cells: Cells, own: Cells, protocol: Protocol) -> None:
    """Writes cells as JSON, a cell a line, and beside it the times of each method of the order."""
    head = json.dumps({"protocol": protocol.digest, "settings": dataclasses.asdict(protocol)})
    lists = (",\n".join(json.dumps(without_seconds(cell)) for cell in listed) for listed in (cells, own))
    write_whole(path, '{}, "cells": [\n{}\n], "own": [\n{}\n]}}\n'.format(head[:-1], *lists))
    times = [
        (cell["method"], cell["task"], *(cell[name]["cpu_seconds"] for name in COLUMNS)) for cell in ordered(cells, own)
    ]
    write_csv(path.with_name(TIMES), ("method", "task", *COLUMNS), times)


def main() -> None:
    """Runs the command line."""
    with process.command():
        rank(parse(Arguments, description=__doc__, example=f"{COMMAND} my_module:mine"))
