"""Pages of the documentation run as they are printed."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def run_page(name: str) -> dict[str, Any]:
    """Runs the Python blocks of a page one after the other, and returns their variables."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert blocks
    variables: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), variables)
    return variables


def test_the_refit_page_refits_a_stock_model():
    variables = run_page("refit.md")
    assert variables["refitted"] < variables["before"] - 0.05
    assert variables["refitted"] < variables["published"]
    assert variables["found"].entropy_range[1] > 1
