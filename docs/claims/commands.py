"""Claims of the page on commands."""

import json
from collections.abc import Iterator

from docs.claims import ROOT, read
from softmax_jax.experiment.board.order import ORDERS, SIGNIFICANT

PAGE = "docs/commands.md"
SETTINGS = {PAGE: ("4, 16 and 64 times", "95 % intervals")}


def board() -> Iterator[tuple[str, str]]:
    yield PAGE, f"a star is p < {SIGNIFICANT}, paired over seeds"
    yield PAGE, f"(Spearman below {ORDERS})"


def vectors() -> Iterator[tuple[str, str]]:
    rows = {len(json.loads(path.read_text())["rows"]) for path in (ROOT / "docs" / "vectors").glob("*.json")}
    (count,) = rows
    yield PAGE, f"for each method {count} rows"


def public_implementations() -> Iterator[tuple[str, str]]:
    verdicts = read("verdicts.csv")["verdict"]
    agree, meant = verdicts.eq("agrees").to_list().count(True), verdicts.str.contains("as meant").to_list().count(True)
    assert len(verdicts) == 10
    yield PAGE, f"{agree} agree, {meant} differ as meant, and {10 - agree - meant} have a known mistake"
