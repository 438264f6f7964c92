"""Claims of the page on commands."""

import json
from collections.abc import Iterator

from docs.claims import ROOT, read

PAGE = "docs/commands.md"


def vectors() -> Iterator[tuple[str, str]]:
    rows = {len(json.loads(path.read_text())["rows"]) for path in (ROOT / "docs" / "vectors").glob("*.json")}
    (count,) = rows
    yield PAGE, f"for each method {count} rows"


def public_implementations() -> Iterator[tuple[str, str]]:
    verdicts = read("verdicts.csv")["verdict"]
    agree, meant = verdicts.eq("agrees").to_list().count(True), verdicts.str.contains("as meant").to_list().count(True)
    assert len(verdicts) == 10
    yield PAGE, f"{agree} agree, {meant} differ as meant, and {10 - agree - meant} have a known mistake"
