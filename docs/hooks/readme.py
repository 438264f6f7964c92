"""Shows README.md as the first page, with its links as they are seen from docs/."""

import re
from pathlib import Path
from typing import Any

SNIPPET = '--8<-- "README.md"'
README = Path(__file__).parents[2] / "README.md"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Returns the page with README.md for its snippet. Files beside docs/ are named, not linked."""
    text = README.read_text().replace("](docs/", "](").replace("](CONTRIBUTING.md", "](adding.md")
    return markdown.replace(SNIPPET, re.sub(r"(?<!!)\[([^]]*)\]\((?:[A-Z]+(?:\.\w+)?|examples/[\w./]+)\)", r"\1", text))
