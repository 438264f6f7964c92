"""Prints docs/normalizers.md, the page of every registered normalizer: python -m docs.catalogue."""

import re

from softmax_jax.attention.fused import READ_ENTROPY, WITH_SINK, rides
from softmax_jax.normalizers.maps import UNWRITTEN, Map
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, Method
from softmax_jax.report.tables import markdown_table

PICTURES = "images/normalizers"
"""Where the pictures of the entries lie, seen from the page."""
COLUMNS = (
    "name",
    "weights",
    "sums to 1",
    "exact zeros",
    "sign",
    "largest weight as n → ∞",
    "numbers",
    "fused kernel",
    "source",
)


def kernel_use(normalizer: Normalizer) -> str:
    """Says in words how a normalizer uses a fused kernel."""
    if not rides(normalizer):
        return "no"
    if type(normalizer.map) in WITH_SINK:
        return "yes: the output times 1 / (1 + exp(sink - lse))"
    if normalizer.scale is None:
        return "yes"
    reads_entropy = isinstance(normalizer.scale, READ_ENTROPY)
    return "yes: in two calls, the first for the entropy" if reads_entropy else "yes: β multiplies the query"


def rows() -> list[tuple[str, ...]]:
    """Returns the cells of every registered method, in the order of `COLUMNS`; what nobody wrote down is a dash."""
    cells = []
    for name, method in METHODS.items():
        numbers, map, entry = ", ".join(method.numbers) or "none", method.map, method.entry
        if entry is UNWRITTEN or not isinstance(map, Map):
            cells.append((name, *("–",) * 5, numbers, "–", "–"))
            continue
        sums_to_one, exact_zeros = ("yes" if fact else "no" for fact in (map.sums_to_one, map.exact_zeros))
        facts = (sums_to_one, exact_zeros, "±" if map.signed else "+", entry.largest_weight)
        cells.append((name, entry.formula, *facts, numbers, kernel_use(method.build()), entry.source))
    return cells


def latex_and_use(method: Method) -> tuple[str, str]:
    """Returns formula and use of a method, from the docstring of its entry."""
    patterns = r"\$\$(.*?)\$\$", r"When to use it\. (.*?)(\n\n|$)"
    parts = (re.search(pattern, method.entry.docstring, re.DOTALL) for pattern in patterns)
    latex, use = (" ".join(found[1].split()) if found else "" for found in parts)
    return latex, use


def entry_of(name: str) -> str:
    """Returns formula, picture, use and source of a method that has an entry."""
    method = METHODS[name]
    latex, use = latex_and_use(method)
    numbers = ", ".join(f"`{number}`" for number in method.numbers) or "none"
    return f"""## {name}

$${latex}$$

![What {name} makes of ten logits, and of one logit of 3 as the row grows]({PICTURES}/{name}.svg)

**When to use it.** {use}

**Numbers:** {numbers}. **Source:** {method.entry.source}.
"""


def markdown() -> str:
    """Returns the whole page."""
    cells = [[cell.replace("|", "\\|") for cell in (f"`{row[0]}`", *row[1:])] for row in rows()]
    body = markdown_table(COLUMNS, cells)
    entries = "\n".join(entry_of(name) for name, method in METHODS.items() if method.entry is not UNWRITTEN)
    return f"""# Every normalizer

Written by `python -m docs.catalogue`. `z` are the logits of a row, `n` the entries that the query
can see. The largest weight is that of one logit δ > 0 above n - 1 equal ones: where it goes to 0, attention disperses.

{body}

The pictures, drawn by `python -m docs.pictures`, show each method with its default numbers: above, its
weights for the same ten logits, which the axis names; below, the weight of one logit of 3 among n - 1 others between
-0.5 and 0.5. Blue is softmax, for comparison.

{entries}"""


if __name__ == "__main__":
    print(markdown(), end="")
