"""Shows the examples of a docstring as code: to Markdown, `>>>` would be a quotation."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Fences every run of lines that starts with a prompt."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring in place."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
