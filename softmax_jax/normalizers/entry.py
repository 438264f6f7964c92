"""What the documentation says of a method."""

from typing import Any, NamedTuple


class Entry(NamedTuple):
    """What the documentation says of a map, or of a method that puts it over a scale."""

    formula: str
    """In plain text."""
    latex: str
    """In LaTeX; of a map it stands in the docstring of its class."""
    largest_weight: str
    """As n → ∞, of one logit δ > 0 above n - 1 equal ones: it disperses if this goes to 0."""
    source: str
    use: str
    """When to use it; of a map it stands in the docstring of its class."""


DISPERSES = "Θ(1/n)"
UNWRITTEN = Entry("–", "", "–", "–", "")
"""Of a method that nobody described."""


def entry_of(map: Any) -> Entry:
    """Returns the entry of a map, from its class; `UNWRITTEN` if it has no formula."""
    if not getattr(map, "formula", ""):
        return UNWRITTEN
    return Entry(map.formula, "", map.largest_weight, map.source, "")
