"""The tables of speed in the README and on the page on scaling, from result files.

    python -m benchmarks.table benchmarks/results/*.json
    python -m benchmarks.table benchmarks/results/*.json --write

The first prints the rows; the second puts them between the marks of docs/scaling.md, and a few of them into README.md.
"""

import dataclasses
import json
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.timing import duration
from softmax_jax.commands.options import each_once, one_line_errors, parse
from softmax_jax.files import write_whole
from softmax_jax.report.tables import put_into

README = Path(__file__).parents[1] / "README.md"
SCALING = README.parent / "docs" / "scaling.md"
ON_GPU = (
    "10 seeds of 100,000 steps of paper, trained",
    "adaptive in two calls: attention forward and backward, 16,384 keys, 8 heads of 128, bfloat16",
)
"""Rows of the README that python -m benchmarks.gpu measures."""
SHORT = (
    "a training step of one seed",
    "an item under five normalizers",
    "adaptive attention in blocks, forward and backward, 2048 queries and keys, 4 heads of 64",
    *ON_GPU,
)
"""What the README shows."""
PAGES = {README: SHORT, SCALING: None}
"""Where tables go, and which rows of them."""
LOAD, GROWN = "load_before", "grown"
"""How busy the machine was, and which point of a line of growing cost a time is; not all results have these."""
KEYS = {"name", "peer", "ratio", "ours_seconds", "peer_seconds", "unit"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="")]
    """Result files, each named DATE-DEVICE.json."""
    write: bool = False
    """Put the tables into README.md and docs/scaling.md instead of printing them."""

    def __post_init__(self) -> None:
        each_once("FILES", self.files)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The list in a result file. Raises ValueError if it is none."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist: name a result file, which must be one that benchmarks.all wrote")
    try:
        results = json.loads(path.read_text())
        complete = isinstance(results, list) and all(KEYS <= set(result) <= KEYS | {LOAD, GROWN} for result in results)
    except (ValueError, TypeError):
        results, complete = [], False
    if not complete or not re.match(r"\d{4}-\d\d-\d\d-.", path.stem):
        raise ValueError(f"{path} is no result file: name one that python -m benchmarks.all wrote")
    return results


def render(paths: tuple[Path, ...], names: Container[str] | None = None) -> str:
    """A Markdown table with a row for each thing measured in each file, or those named, its peers side by side."""
    lines = ["| | time | against its peers in the same run | measured |", "|---|---|---|---|"]
    for path in paths:
        rows: dict[str, list[dict[str, Any]]] = {}
        for result in read_results(path):
            if GROWN not in result and (names is None or result["name"] in names):
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


def render_growth(paths: tuple[Path, ...]) -> str:
    """A Markdown table of how cost grows: the exponent of time in a size, beside that of the floor.

    An exponent is the slope of log time over log size, of which there are two or more.
    """
    lines = ["| | grows with | time | exponent | of its products | times its products | measured |", "|" + "---|" * 7]
    for path in paths:
        points: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for result in read_results(path):
            if GROWN in result:
                points.setdefault((result[GROWN]["what"], result[GROWN]["by"]), []).append(result)
        for (what, by), line in points.items():
            sizes = [result[GROWN]["size"] for result in line]
            slopes = [exponent(sizes, [result[of] for result in line]) for of in ("ours_seconds", "peer_seconds")]
            last = line[-1]
            cells = [what, f"{by}, {sizes[0]:,} to {sizes[-1]:,}", duration(last["ours_seconds"])]
            cells += [f"{slope:.2f}" for slope in slopes] + [f"{1 / last['ratio']:.1f}", measured(path, last)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if lines[2:] else "Not measured yet."


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of the size that the time grows by.

    >>> round(exponent([10, 20, 40], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


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


def tables_of(paths: tuple[Path, ...], names: Container[str] | None) -> dict[str, str]:
    """The tables of a page by their marks, with these rows or all and how cost grows."""
    tables = {"benchmarks": render(paths, names)}
    return tables if names else tables | {"growth": render_growth(paths)}


def write(paths: tuple[Path, ...]) -> None:
    """Puts the tables of these files into the pages."""
    for page, names in PAGES.items():
        write_whole(page, put_into(page.read_text(), tables_of(paths, names)))


def main() -> None:
    """Prints the table, or puts it into the README and the page on scaling."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        if arguments.write:
            write(arguments.files)
        else:
            print(*tables_of(arguments.files, None).values(), sep="\n\n")


if __name__ == "__main__":
    main()
