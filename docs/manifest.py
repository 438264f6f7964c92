"""Writes where a file of data comes from: python -m docs.manifest FILE --kind KIND --command "python -m …" ...

Write the entry after the file is in its place under docs/data. What is left out stays as the entry has it; a new entry
needs all that its kind asks for. `--delete` removes the entry of a file that is gone.
"""

import dataclasses
import hashlib
import json
import platform
from datetime import date
from typing import Annotated, Any, Literal

import jax
import tyro

from docs.claims import DATA, ROOT
from softmax_jax.experiment.commands.parse import parse, refuse
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.files import write_whole
from softmax_jax.temperature import checkpoint_sha256

PATH = DATA / "manifest.json"
ALWAYS = ("kind", "command", "date", "commit", "machine", "versions", "sha256")
"""What every entry has; the commit is that of the code or the one that brought the file."""
KINDS = {
    "models": ("checkpoints", "sets", "seeds"),
    "trained by the command": ("sets", "seeds"),
    "means as printed": ("sets", "seeds"),
    "pretrained model": ("model", "sets"),
    "other libraries": (),
    "rows of logits": ("sets",),
    "derived": ("from",),
    "times": (),
    "formulas": (),
}
"""What else an entry of each kind has. Models are those of checkpoints/, with the digest of their parameters; sets are
those of a seed and length, or texts of a length; "means as printed" kept no values of single seeds; a derived file is
computed from others, whose entries say the rest; formulas and times have neither models nor sets."""


def lacking(entry: dict[str, Any]) -> set[str]:
    """Returns the keys that an entry must have and has not.

    >>> sorted(lacking({"kind": "derived", "command": "python -m studies.ablation"}))
    ['commit', 'date', 'from', 'machine', 'sha256', 'versions']
    """
    return {key for key in (*ALWAYS, *KINDS[entry["kind"]]) if entry.get(key) in (None, "", [], {})}


def sha256(file: str) -> str:
    """Returns the digest of a file under docs/data."""
    return hashlib.sha256((DATA / file).read_bytes()).hexdigest()


def digests(names: list[str]) -> dict[str, str]:
    """Returns the digest of the parameters of each run of checkpoints/."""
    return {name: checkpoint_sha256(load_checkpoint(SHIPPED / name)[1]) for name in names}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line. What is left out stays as the entry has it."""

    file: tyro.conf.Positional[str]
    """Under docs/data, as frontier/losses.csv."""
    kind: Literal[*KINDS] | None = None  # pyright: ignore[reportInvalidTypeForm]
    """The kind of the data, which says what else an entry must have."""
    command: str | None = None
    """The command that wrote it."""
    date: str | None = None
    """The day that it was written, today in a new entry."""
    commit: str | None = None
    """The commit of the code, or the one that brought the file."""
    machine: str | None = None
    """The machine that computed it."""
    note: str | None = None
    """What else is to be known."""
    model: str | None = None
    """The name of a pretrained model."""
    sets: int | str | None = None
    """Sets of a seed and length."""
    seeds: int | str | None = None
    """Seeds, or which."""
    key: int | None = None
    """The key of the test sets."""
    checkpoints: tuple[str, ...] | None = None
    """Names of runs in checkpoints/."""
    sources: Annotated[tuple[str, ...] | None, tyro.conf.arg(name="from")] = None
    """Files that it is derived from."""
    delete: bool = False
    """Remove the entry of a file that is gone."""

    def entry(self) -> dict[str, Any]:
        """Returns what an entry says of these options."""
        given = dataclasses.asdict(self) | {"from": self.sources}
        given = {name: value for name, value in given.items() if value is not None}
        if self.checkpoints is not None:
            given["checkpoints"] = digests(list(self.checkpoints))
        return {name: value for name, value in given.items() if name not in ("file", "sources", "delete")}


def main() -> None:
    """Writes one entry."""
    arguments = parse(Arguments, description=__doc__)
    file, manifest = arguments.file, json.loads(PATH.read_text())
    if arguments.delete:
        del manifest[file]
    else:
        new = {"date": str(date.today()), "versions": {"jax": jax.__version__, "python": platform.python_version()}}
        entry = (manifest.get(file) or new) | arguments.entry() | {"sha256": sha256(file)}
        if missing := lacking(entry):
            refuse(f"{file}: give {', '.join(f'--{key}' for key in sorted(missing))}")
        manifest[file] = entry
    write_whole(PATH, json.dumps(dict(sorted(manifest.items())), indent=1, ensure_ascii=False) + "\n")
    print(f"{PATH.relative_to(ROOT)}: {file}")


if __name__ == "__main__":
    main()
