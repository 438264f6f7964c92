"""Signs the pages of notebooks with the code that draws their pictures: python -m docs.pages NAME ...

`docs/render` calls it on every page that it writes. The tests compare the signature with the code as it is, and so find
a page whose pictures may be out of date without running its notebook, which takes minutes.
"""

import hashlib
import importlib.util
import re
import sys
from pathlib import Path

from softmax_jax.files import read_text, write_whole

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
EVERYWHERE = ("softmax_jax.experiment.report.charts",)
"""The modules that draw every chart of a notebook; those of files and of print draw none."""
IMPORT = re.compile(r"^from (softmax_jax\.experiment\.report[\w.]*) import (.*)$", re.MULTILINE)
SIGNATURE = re.compile(r"\n<!-- pictures by (\w+) -->\n\Z")


def chart_modules(source: str) -> list[str]:
    r"""Returns the modules of charts and tables that the source of a notebook imports, and those of every chart.

    >>> chart_modules("from softmax_jax.experiment.report import shootout")
    ['softmax_jax.experiment.report.charts', 'softmax_jax.experiment.report.shootout']
    """
    modules: set[str] = set(EVERYWHERE)
    for package, names in IMPORT.findall(source):
        for name in names.split(","):
            inner = f"{package}.{name.split()[0]}"
            is_package = getattr(importlib.util.find_spec(package), "submodule_search_locations", None)
            modules.add(inner if is_package else package)
    return sorted(modules)


def signature(name: str) -> str:
    """Returns the fingerprint of the code that draws the pictures of a notebook's page."""
    source = read_text(NOTEBOOKS / f"{name}.py")
    paths = [ROOT / f"{module.replace('.', '/')}.py" for module in chart_modules(source)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def signed(page: str) -> str | None:
    """Returns the fingerprint that a page holds."""
    mark = SIGNATURE.search(page)
    return mark[1] if mark else None


def main() -> None:
    """Signs the pages of the notebooks that are named."""
    for name in sys.argv[1:]:
        page = NOTEBOOKS / f"{name}.md"
        text = SIGNATURE.sub("", read_text(page))
        write_whole(page, f"{text.rstrip()}\n\n<!-- pictures by {signature(name)} -->\n")


if __name__ == "__main__":
    main()
