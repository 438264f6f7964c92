"""Prints docs/normalizers.md, the page of every registered normalizer: python -m docs.catalogue."""

import re

from softmax_jax.attention.fused import runs_fused
from softmax_jax.experiment.report.tables import markdown_table
from softmax_jax.normalizers.maps import UNWRITTEN, Map
from softmax_jax.normalizers.registry import METHODS, Method

BLANK = re.compile(r"(?<![A-Za-z]) | (?![A-Za-z])")
"""A blank that no letters enclose."""
PICTURES = "images/normalizers"
"""Where the pictures of the entries lie, seen from the page."""


def facts_of(method: Method) -> list[str]:
    """Returns what sets a method apart: how its largest weight goes, its weights, and fused kernels."""
    part = method.map
    if method.entry is UNWRITTEN or not isinstance(part, Map):
        return ["not described"]
    known = {
        "weights do not sum to 1": not part.sums_to_one,
        "exact zeros": part.exact_zeros,
        "negative weights": part.signed,
        "runs on a fused kernel": runs_fused(method.build()),
    }
    return [f"largest weight {method.entry.largest_weight}", *(fact for fact, holds in known.items() if holds)]


def rows() -> list[tuple[str, list[str]]]:
    """Returns each fact with the names of its methods, facts of one kind together."""
    named: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for fact in facts_of(method):
            named.setdefault(fact, []).append(name)
    kinds = ("largest", "weights", "exact", "negative", "runs", "not")
    return sorted(named.items(), key=lambda row: kinds.index(row[0].split()[0]))


def latex_and_use(method: Method) -> tuple[str, str]:
    """Returns formula and use of a method, from the docstring of its entry."""
    patterns = r"\$\$(.*?)\$\$", r"When to use it\. (.*?)(\n\n|$)"
    parts = (re.search(pattern, method.entry.docstring, re.DOTALL) for pattern in patterns)
    latex, use = (" ".join(part[1].split()) if part else "" for part in parts)
    return compact(latex), use


def compact(latex: str) -> str:
    r"""Returns a formula without the blanks that LaTeX ignores.

    >>> print(compact(r"w = \max(z - \tau, 0), \qquad \tau \text{ such that } \sum_j w_j = 1"))
    w=\max(z-\tau,0),\qquad\tau\text{ such that }\sum_j w_j=1
    """
    parts = re.split(r"(\\text\{[^}]*\})", latex)
    return "".join(part if part.startswith(r"\text") else BLANK.sub("", part) for part in parts)


def entry_of(name: str) -> str:
    """Returns formula, picture, use, numbers and source of a method that has an entry."""
    method = METHODS[name]
    latex, use = latex_and_use(method)
    numbers = ", ".join(f"`{number}`" for number in method.numbers)
    return f"""## {name}

$${latex}$$

![{name}]({PICTURES}/{name}.svg)

{use}

{f"Numbers: {numbers}. " if numbers else ""}{method.entry.source[0].upper()}{method.entry.source[1:]}.
"""


def markdown() -> str:
    """Returns the whole page."""
    cells = [[fact, ", ".join(f"`{name}`" for name in names)] for fact, names in rows()]
    entries = "\n".join(entry_of(name) for name, method in METHODS.items() if method.entry is not UNWRITTEN)
    return f"""# Normalizers

**No normalizer that was swapped in without learning is shown to help a pretrained model in rows of more than 128
tokens** ([Language models](language_models.md): the loss of SmolLM2-135M on prose and code, the needles of
all-MiniLM-L6-v2, one model each). What models gain that are trained with one: [Train and test](train_and_test.md).

The first rows say what the largest weight does as a row grows to n → ∞ entries: one logit t = r + δ, δ > 0, above n - 1
logits r. Where it goes to 0, attention disperses. `z` are the logits of a row, `n` counts the entries that the query
can see.

{markdown_table(("property", "normalizers"), cells)}

Where r stands in a condition, the map depends on the offset of the logits, which training under softmax leaves
arbitrary.

Pictures: the weights of ten logits at default numbers, and of one logit of 3 among n - 1 others near 0. Blue is
softmax. `python -m docs.catalogue` writes this page.

{entries}"""


if __name__ == "__main__":
    print(markdown(), end="")
