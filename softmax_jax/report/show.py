"""Models, parameters and weights to look into, in a notebook or as a page of their own."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import treescope
from treescope import figures, lowering, rendering_parts

from softmax_jax.files import write_whole

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
</head>
<body>
{body}
</body>
</html>
"""


def show(
    value: Any, path: str | Path | None = None, *, axes: Sequence[str] = (), labels: dict[str, Sequence[str]] | None = None
) -> Any:
    """Shows a value in a notebook, or writes it as a stand-alone page that opens anywhere.

    A Flax module or a tree of parameters is shown with a picture of every array in it. An array is drawn by itself,
    its cells to be hovered over; `axes` names its dimensions and `labels` the places along some of them. Returns what
    a notebook displays, or the path of the page, which needs no network and is written whole or not at all.

    Raises ValueError for names that do not fit the array.

    >>> import tempfile
    >>> weights = np.eye(2)
    >>> page = show(weights, Path(tempfile.mkdtemp()) / "weights.html", axes=("query", "key"))
    >>> page.read_text()[:15]
    '<!doctype html>'
    """
    part = picture(value, axes, labels or {})
    if path is None:
        return figures.figure_from_treescope_rendering_part(part)
    write_whole(Path(path), PAGE.format(title=html.escape(type(value).__name__), body=as_html(part)))
    return Path(path)
