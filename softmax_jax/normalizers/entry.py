"""What the documentation says of a method, and what a page needs to compute it."""

import inspect
import re
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """What the documentation says of a map, or of a method that puts it over a scale."""

    formula: str
    """In plain text."""
    latex: str
    """In LaTeX."""
    largest_weight: str
    """As n → ∞, of one logit δ > 0 above n - 1 equal ones: it disperses if this goes to 0."""
    source: str
    use: str
    """When to use it."""


DISPERSES = "Θ(1/n)"
UNWRITTEN = Entry("–", "", "–", "–", "")
"""Of a method that nobody described."""


def entry_of(map: Any) -> Entry:
    """The entry of a map, from its class and its docstring; `UNWRITTEN` if it has no formula."""
    if not getattr(map, "formula", ""):
        return UNWRITTEN
    docstring = inspect.getdoc(map) or ""
    latex = re.search(r"\$\$(.*?)\$\$", docstring, re.DOTALL)
    use = re.search(r"When to use it\. (.*?)\n\n", docstring, re.DOTALL)
    said = (" ".join(found[1].split()) if found else "" for found in (latex, use))
    return Entry(map.formula, next(said), map.largest_weight, map.source, next(said))


class Written(NamedTuple):
    """A map as expressions of Vega: the weights are `share`, over `offset` + Σ `mass` of the row."""

    share: str
    mass: str
    offset: str = "0"
