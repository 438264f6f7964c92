"""Models, parameters and weights to look into, in a notebook or as a page of their own.

`show(value, path=None, *, axes=(), labels=None, columns=(), limits=None)` is exported as `softmax_jax.show`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import treescope
from treescope import figures, lowering

from softmax_jax.files import write_whole
from softmax_jax.refusal import Refusal


def templates(package: str) -> jinja2.Environment:
    """Returns the templates in the folder `assets` of a package, which are filled with plain text."""
    loader = jinja2.PackageLoader(package, "assets")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment


def show(
    value: Any,
    path: str | Path | None = None,
    *,
    axes: Sequence[str] = (),
    labels: Mapping[str, Sequence[str]] | None = None,
    columns: Sequence[str] = (),
    limits: tuple[float, float] | None = None,
) -> Any:
    """Shows a value in a notebook, or writes it as a page that opens from disk, with no network.

    Arguments:
        value: A Flax module or a tree of parameters, which unfolds with a picture of every array in it; or an array
            with named axes, where hovering over a cell shows its number.
        path: Where to write the page, whole or not at all. None returns what a notebook displays.
        axes: The names of the dimensions of an array.
        labels: For the name of an axis, those of its places.
        columns: The axes that run from left to right, innermost last; the others run down.
        limits: The ends of the colour scale.

    Returns:
        What a notebook displays, or the path of the page.

    Raises:
        ValueError: For axes that are not one name for each dimension, and for labels and columns that do not fit.

    Example:
        >>> import tempfile
        >>> page = show(np.eye(2), Path(tempfile.mkdtemp()) / "weights.html", axes=("query", "key"))
        >>> page.read_text()[:15]
        '<!doctype html>'
    """
    if axes or labels or columns or limits:
        figure = array_figure(np.asarray(value), list(axes), labels or {}, columns, limits)
    else:
        with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
            figure = figures.inline(value)
    if path is None:
        return figure
    # `treescope.render_to_html` would draw the figure as a Python object, not what it shows.
    body = lowering.render_to_html_as_root(figure.treescope_part, compressed=False)
    page = templates("softmax_jax").get_template("value.html")
    write_whole(Path(path), page.render(title=type(value).__name__, body=body))
    return Path(path)


def array_figure(
    array: np.ndarray,
    axes: list[str],
    labels: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    limits: tuple[float, float] | None,
) -> Any:
    """Returns a figure of an array with named axes; the last half run from left to right unless `columns` says so."""
    if len(set(axes)) != array.ndim or len(axes) != array.ndim:
        raise Refusal(f"axes is {axes}: the array has the shape {array.shape}, so give {array.ndim} different names")
    for name in (*labels, *columns):
        if name not in axes:
            raise Refusal(f"{name!r} is no axis: the axes are {', '.join(axes)}")
    for name, places in labels.items():
        if len(places) != array.shape[axes.index(name)]:
            raise Refusal(f"labels[{name!r}] has {len(places)} names for {array.shape[axes.index(name)]} places")
    axes, labels = list(map(harmless, axes)), {harmless(name): list(map(harmless, labels[name])) for name in labels}
    across = [axes.index(name) for name in map(harmless, columns or axes[array.ndim // 2 :])]
    down = [axis for axis in range(array.ndim) if axis not in across]
    low, high = limits or (None, None)
    # Treescope wants the innermost first.
    return treescope.render_array(
        array,
        columns=across[::-1],
        rows=down[::-1],
        axis_labels={axis: f"{name}: {size}" for axis, (name, size) in enumerate(zip(axes, array.shape))},
        axis_item_labels={axes.index(name): places for name, places in labels.items()},
        vmin=low,
        vmax=high,
        trim_outliers=False,
        around_zero="auto" if limits is None else False,
        maximum_size=array.size,
        cutoff_size_per_axis=max(array.shape, default=1),
    )


def harmless(text: object) -> str:
    """Returns a text that no page takes for HTML: Treescope writes labels into a script as they are.

    >>> harmless("a</script>")
    'a‹/script>'
    """
    return str(text).replace("<", "‹")
