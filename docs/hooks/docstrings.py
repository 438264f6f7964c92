"""Shows in docstrings what Markdown, or the reader of the source, would leave out."""

import re
import textwrap
from typing import Any

import griffe

SECTION = re.compile(
    r"^(Arguments|Returns|Raises|Example|References):(?: |\n((?:(?: {4}.*)?(?:\n|\Z))*))", re.MULTILINE
)
"""A section: its title, and the lines that are indented below."""
ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Shows sections in bold, examples as code, where `>>>` would be a quotation, and the fields of a named tuple."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Writes sections, and fences every run of lines that starts with a prompt."""
        if obj.docstring:
            text = SECTION.sub(_section, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Writes the fields under the docstring."""
        if cls.docstring and any(str(base) == "NamedTuple" for base in cls.bases):
            fields = [f"{name}: {field.annotation}" for name, field in cls.attributes.items()]
            lines = ",\n".join(f"    {field}" for field in fields)
            cls.docstring.value += f"\n\n```python\n{cls.name}(\n{lines},\n)\n```\n"


def _section(section: re.Match[str]) -> str:
    """Returns a title in bold and its lines below, arguments and exceptions as a list."""
    body = textwrap.dedent(section[2] or "").strip("\n")
    if section[1] in ("Arguments", "Raises"):
        body = ENTRY.sub(r"- `\1`: ", body)
    return f"**{section[1]}**\n\n{body}\n\n" if body else f"**{section[1]}**\n\n"
