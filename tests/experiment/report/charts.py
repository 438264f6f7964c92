"""What a chart says and draws, and what a command prints."""

import io
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

NAMESPACE = "{http://www.w3.org/2000/svg}"
OWN_COLOURS = ('"#000', '"#fff', '"black"', '"white"', '"background"')
"""What a chart must not have, for the page to give it its theme."""


def printed(printer: Callable[..., None], *arguments: Any, width: int = 100) -> str:
    """What a function prints to a console of so many columns."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    printer(console, *arguments)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def items_of(text: str) -> list[int]:
    """The lengths in the headers of printed tables, one table after the other."""
    return [int(n) for line in text.splitlines() if line.strip().startswith("items") for n in line.split()[1:]]


def texts_of(svg: str | bytes) -> set[str | None]:
    """Every title, label and number of a picture."""
    return {element.text for tag in ("text", "tspan") for element in ET.fromstring(svg).iter(f"{NAMESPACE}{tag}")}


def values_of(chart: Any) -> list[dict[str, Any]]:
    """The records of every layer of a chart but the names at the ends of lines."""

    def records(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            yield from (row for row in part.get("data", {}).get("values", []) if "place" not in row)
            part = list(part.values())
        if isinstance(part, list):
            for inner in part:
                yield from records(inner)

    return list(records(chart.to_dict()))
