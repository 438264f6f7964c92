"""What a page says in words is what the files under docs/data give, and no result stands there by hand."""

import re

import pytest

from docs.claims import ROOT, claims_of, walk

CLAIMS = [(module.__name__.split(".")[-1], name) for module in walk.MODULES for name in claims_of(module)]


@pytest.mark.parametrize(("module", "name"), CLAIMS)
def test_what_a_page_says_is_what_its_data_say(module: str, name: str):
    claims = list(claims_of(next(m for m in walk.MODULES if m.__name__ == f"docs.claims.{module}"))[name]())
    assert claims
    for page, words in claims:
        assert walk.plain(words) in walk.plain((ROOT / page).read_text()), page


SNIPPETS = {"index.md", "adding.md"}
"""Pages that show a file of the repository."""
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in SNIPPETS)
WALKED = ["README.md", *(f"docs/{page}" for page in PAGES)]
"""The pages on which every result is computed."""


@pytest.mark.parametrize("page", WALKED)
def test_no_result_of_a_page_is_typed(page: str):
    text, sentences = (ROOT / page).read_text(), walk.sentences_by_page().get(page, [])
    assert list(walk.unclaimed(text, sentences)) == []


def test_a_result_that_is_changed_by_hand_is_found():
    page = "README.md"
    text, sentences = (ROOT / page).read_text(), walk.sentences_by_page()[page]
    (gain,) = re.findall(r"gains (\d\.\d\d) ± \d\.\d\d points in the mean", " ".join(text.split()))
    places = list(walk.unclaimed(text, sentences))
    assert not any(f"[{gain}]" in place for place in places)
    assert any("[9.99]" in place for place in walk.unclaimed(text.replace(gain, "9.99"), sentences))
