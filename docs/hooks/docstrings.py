"""Shows in docstrings what Markdown, or the reader of the source, would leave out."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Shows examples as code, where `>>>` would be a quotation, and the fields of a named tuple."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fences every run of lines that starts with a prompt."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Writes the fields under the docstring."""
        if cls.docstring and any(str(base) == "NamedTuple" for base in cls.bases):
            fields = [f"{name}: {field.annotation}" for name, field in cls.attributes.items()]
            lines = ",\n".join(f"    {field}" for field in fields)
            cls.docstring.value += f"\n\n```python\n{cls.name}(\n{lines},\n)\n```\n"
