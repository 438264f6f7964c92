"""Every registered normalizer as a table, and as the page docs/normalizers.md with an entry for each."""

import dataclasses

from rich.console import Console
from rich.markup import escape

from softmax_jax.attention.fused import kernel_use
from softmax_jax.normalizers.entry import UNWRITTEN
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.markdown import table
from softmax_jax.report.tables import new_table
from softmax_jax.runtime.command_line import parse

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


def rows() -> list[tuple[str, ...]]:
    """The cells of every registered method, in the order of `COLUMNS`; what nobody wrote down is a dash."""
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


def entry_of(name: str) -> str:
    """Formula, picture, use and source of a method that has an entry."""
    method = METHODS[name]
    numbers = ", ".join(f"`{number}`" for number in method.numbers) or "none"
    return f"""## {name}

$${method.entry.latex}$$

![What {name} makes of ten logits, and of one logit of 3 as the row grows]({PICTURES}/{name}.svg)

**When to use it.** {method.entry.use}

**Numbers:** {numbers}. **Source:** {method.entry.source}.
"""


def markdown() -> str:
    """The whole page."""
    cells = [[cell.replace("|", "\\|") for cell in (f"`{row[0]}`", *row[1:])] for row in rows()]
    body = table(COLUMNS, cells)
    entries = "\n".join(entry_of(name) for name, method in METHODS.items() if method.entry is not UNWRITTEN)
    return f"""# Every normalizer

Written by `python -m softmax_jax.normalizers --markdown`. `z` are the logits of a row, `n` the entries that the query
can see. The largest weight is that of one logit δ > 0 above n - 1 equal ones: where it goes to 0, attention disperses.

{body}

The pictures, drawn by `python -m softmax_jax.studies.pictures`, show each method with its default numbers. On the left
are its weights for the same ten logits, which the axis names; on the right is the weight of one logit of 3 among n - 1
others between -0.5 and 0.5. Blue is softmax, for comparison.

{entries}"""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    markdown: bool = False
    """Print the page docs/normalizers.md instead."""


def main() -> None:
    """Prints the table for a terminal, or the page."""
    if parse(Arguments, description=__doc__).markdown:
        print(markdown(), end="")
        return
    printed = new_table("", COLUMNS[0], "", names=2)
    for name, formula, *facts, source in rows():
        said = "; ".join(f"{column}: {fact}" for column, fact in zip(COLUMNS[2:-1], facts))
        printed.add_row(name, f"[bold]{escape(formula)}[/]\n{escape(said)}\n{escape(source)}")
        printed.add_section()
    Console().print(printed)
