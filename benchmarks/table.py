"""The tables of speed, from result files.

    python -m benchmarks.table benchmarks/results/*.json
    python -m benchmarks.table benchmarks/results/*.json --write

The first prints them. The second puts how cost grows into docs/scaling.md, between its marks, and every number into
docs/data/scaling.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.timing import duration
from softmax_jax.experiment.commands.parse import each_once, parse
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.report.tables import markdown_table, put_into
from softmax_jax.files import read_json, read_text, write_csv, write_whole
from softmax_jax.refusal import Refusal

DOCS = Path(__file__).parents[1] / "docs"
SCALING = DOCS / "scaling.md"
DATA = DOCS / "data" / "scaling"
"""Where every number goes."""
LOAD, GROWN = "load_before", "grown"
"""How busy the machine was, and which point of a line of growing cost a time is; not all results have these."""
KEYS = {"name", "peer", "ratio", "ours_seconds", "peer_seconds", "unit"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="")]
    """Result files, each named DATE-DEVICE.json."""
    write: bool = False
    """Write docs/scaling.md and docs/data/scaling instead of printing the tables."""

    def __post_init__(self) -> None:
        each_once("FILES", self.files)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The list in a result file. Raises ValueError if it is none."""
    if not path.is_file():
        raise Refusal(f"{path} does not exist: name a result file, which must be one that benchmarks.all wrote")
    try:
        results = read_json(path)
        complete = isinstance(results, list) and all(
            isinstance(result, dict) and KEYS <= set(result) <= KEYS | {LOAD, GROWN} for result in results
        )
    except Refusal:
        results, complete = [], False
    if not complete or not re.match(r"\d{4}-\d\d-\d\d-.", path.stem):
        raise Refusal(f"{path} is no result file: name one that python -m benchmarks.all wrote")
    return results


def render(paths: tuple[Path, ...]) -> str:
    """Returns a Markdown table with a row for each thing measured in each file, its peers side by side."""
    lines = ["| | time | against its peers in the same run | measured |", "|---|---|---|---|"]
    for path in paths:
        rows: dict[str, list[dict[str, Any]]] = {}
        for result in read_results(path):
            if GROWN not in result:
                rows.setdefault(result["name"], []).append(result)
        for name, results in rows.items():
            against = "; ".join(comparison(result) for result in results)
            lines.append(
                f"| {name} | {duration(results[0]['ours_seconds'])} | {against} | {measured(path, results[0])} |"
            )
    return "\n".join(lines)


def measured(path: Path, result: dict[str, Any]) -> str:
    """When, on what and how busy a machine a result was measured."""
    busy = f", load {result[LOAD]} before" if LOAD in result else ""
    return f"{path.stem[:10]}, {path.stem[11:].replace('-', ' ')}{busy}"


GROWTH = ("what", "by", "smaller", "larger", "seconds", "exponent", "products_exponent", "times_products", "measured")
SHOWN = {"exponent": 2, "products_exponent": 2, "times_products": 1}
"""The columns of the table on the page, with their decimals."""


def growth(paths: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Returns how cost grows: the exponent of the time in a size, beside that of the matrix products; keys `GROWTH`.

    An exponent is the slope of log time over log size, of which there are two or more. The seconds are those at the
    larger size.
    """
    rows = []
    for path in paths:
        points: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in read_results(path):
            if GROWN in result:
                points.setdefault((result[GROWN]["what"], result[GROWN]["by"]), []).append(result)
        for (what, by), line in points.items():
            sizes, last = [result[GROWN]["size"] for result in line], line[-1]
            slopes = [
                exponent(sizes, [result[results] for result in line]) for results in ("ours_seconds", "peer_seconds")
            ]
            cells = (what, by, sizes[0], sizes[-1], last["ours_seconds"], *slopes, 1 / last["ratio"])
            rows.append(dict(zip(GROWTH, (*cells, measured(path, last)), strict=True)))
    return rows


def render_growth(paths: tuple[Path, ...]) -> str:
    """Returns a Markdown table of how cost grows on the machine of the last file, by length, width and seeds."""
    last = [rows for path in paths if (rows := growth((path,)))][-1:]
    if not last:
        return "Not measured yet."
    cells = [
        [
            row["what"].removesuffix(" attention, forward and backward").removesuffix(" of all seeds"),
            f"{row['by']}, {row['smaller']:,} to {row['larger']:,}",
            *(f"{row[key]:.{digits}f}" for key, digits in SHOWN.items()),
        ]
        for row in last[0]
        if row["by"] not in ("heads", "size of a head")
    ]
    return markdown_table(["what", "grows with", "exponent", "of its products", "times its products"], cells)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of the size that the time grows by.

    >>> round(exponent([10, 20, 40], [3, 12, 48]), 3)
    2.0
    """
    return round(float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]), 6)  # as the last digits differ by machine


def comparison(result: dict[str, Any]) -> str:
    """One ratio in words.

    >>> comparison({"ratio": 4.21, "peer": "a plain port"}), comparison({"ratio": 0.5, "peer": "softmax"})
    ('4.2 × faster than a plain port', '2.0 × the time of softmax')
    """
    ratio = result["ratio"]
    if ratio < 1:
        return f"{1 / ratio:.1f} × the time of {result['peer']}"
    return f"{ratio:,.{0 if ratio >= 20 else 1}f} × faster than {result['peer']}"


def newest(directory: Path) -> tuple[Path, ...]:
    """The last result file of each device."""
    return tuple({path.stem[11:]: path for path in sorted(directory.glob("*.json"))}.values())


def files_of(paths: tuple[Path, ...]) -> dict[str, tuple[Sequence[str], list[Sequence[Any]]]]:
    """Returns the columns and rows of every CSV file by its name: what is compared with a peer, and how cost grows."""
    columns = ("name", "peer", "ratio", "ours_seconds", "peer_seconds", "unit")
    compared: list[Sequence[Any]] = [
        (*(result[column] for column in columns), measured(path, result))
        for path in paths
        for result in read_results(path)
        if GROWN not in result
    ]
    grown: list[Sequence[Any]] = [tuple(row.values()) for row in growth(paths)]
    return {"benchmarks": ((*columns, "measured"), compared), "growth": (GROWTH, grown)}


def write(paths: tuple[Path, ...]) -> None:
    """Puts the table of growth into the page on scaling, and all numbers into CSV files."""
    write_whole(SCALING, put_into(read_text(SCALING), {"growth": render_growth(paths)}))
    for name, (columns, rows) in files_of(paths).items():
        write_csv(DATA / f"{name}.csv", columns, rows)


def main() -> None:
    """Prints the tables, or writes them into the page and the files."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        if arguments.write:
            write(arguments.files)
        else:
            print(render(arguments.files), render_growth(arguments.files), sep="\n\n")


if __name__ == "__main__":
    main()
