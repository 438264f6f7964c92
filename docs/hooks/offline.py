"""Refuses a page that would fetch something when it is read, or that shows a formula or a colour as it was typed."""

import re
from typing import Any

FETCHES = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
)
CODE = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.DOTALL)
TYPED = re.compile(r"\$\$|\\[([a-z]")
"""Dollars and LaTeX in prose."""
ESCAPE = re.compile(r"\x1b|�\[")
"""By which a terminal is told colours."""


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The page as it is. Raises ValueError if it breaks a rule."""
    rules = (("fetches", FETCHES, output), ("shows LaTeX", TYPED, CODE.sub("", output)), ("shows", ESCAPE, output))
    for what, rule, text in rules:
        if match := rule.search(text):
            around = text[max(match.start() - 40, 0) : match.end() + 40]
            raise ValueError(f"{page.file.src_uri} {what}: {around!r}")
    return output
