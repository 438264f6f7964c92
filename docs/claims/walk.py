"""Finds the results on a page that no claim computes from data: python -m docs.claims.walk [PAGE ...]."""

import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator

from docs import claims
from docs.claims import ROOT, claims_of

MODULES = [
    importlib.import_module(f"docs.claims.{module.name}")
    for module in pkgutil.iter_modules(claims.__path__)
    if module.name != "walk"
]
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
UNIT = r"(?:%|points?|nats?|times|×|standard deviations|ulp|seconds|minutes|s\b|ms\b)"
RESULT = re.compile(
    rf"(?<![\w./-])(?:± ?{NUMBER}|{NUMBER} ?{UNIT}|{NUMBER} of {NUMBER}|\d[\d,]*\.\d+(?:e-?\d+)?)(?![\w-]*\.\d)"
)
"""A number with a decimal point or a unit, behind ±, or one of a count."""
APART = re.compile(
    r"""```.*?```            # code
      | `[^`]*`              # code within a line
      | \$\$.*?\$\$ | \$[^$]*\$   # formulas
      | <!--\ (?P<block>[\w ]+)\ -->.*?<!--\ /(?P=block)\ -->   # tables that a study writes and a test computes again
      | <!--\ means\ of.*?-->\n(?:\|[^\n]*\n)+                   # tables of means, which a test computes again
      | <!--.*?-->
      | \]\([^)]*\)         # addresses
      | \b\d{4}-\d\d-\d\d\b    # dates
      | \b\d{4}\.\d{5}\b       # numbers of arXiv
    """,
    re.DOTALL | re.VERBOSE,
)


def plain(text: str) -> str:
    """Returns a text with single blanks, without the marks of bold and italic letters, in small letters."""
    return " ".join(re.sub(r"\*+|(?<!\w)_(?=\w)", "", text).split()).lower()


def unclaimed(page: str, sentences: list[str]) -> Iterator[str]:
    """Yields the results on a page, each in its surroundings, that stand in none of the sentences.

    >>> list(unclaimed("Softmax answers 12.5 % of 3 sets; hardmax 50 %, by `f(0.5)`.", ["hardmax 50 %"]))
    ['softmax answers [12.5 %] of 3 sets; hardmax 50 %, by .']
    """
    text = plain(APART.sub(" ", page))
    covered = [
        match.span()
        for sentence in sentences
        if (words := plain(APART.sub(" ", sentence)))
        for match in re.finditer(re.escape(words), text)
    ]
    for match in RESULT.finditer(text):
        start, end = match.span()
        if not any(low <= start and end <= high for low, high in covered):
            yield f"{text[max(start - 60, 0) : start]}[{match[0]}]{text[end : end + 60]}"


@functools.cache
def sentences_by_page() -> dict[str, list[str]]:
    """Returns the sentences that claims compute and the settings that modules name, by page."""
    sentences: dict[str, list[str]] = {}
    for module in MODULES:
        for yield_claims in claims_of(module).values():
            for page, words in yield_claims():
                sentences.setdefault(page, []).append(words)
        for page, settings in getattr(module, "SETTINGS", {}).items():
            sentences.setdefault(page, []).extend(settings)
    return sentences


def main() -> None:
    """Prints the results that no claim computes, of the pages that are named or of all."""
    sentences = sentences_by_page()
    for page in sys.argv[1:] or sentences:
        for place in unclaimed((ROOT / page).read_text(), sentences.get(page, [])):
            print(f"{page}: {place}")


if __name__ == "__main__":
    main()
