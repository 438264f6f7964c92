"""Writes where a file of data comes from: python -m docs.manifest FILE --kind KIND --command "python -m …" ...

Write the entry after the file is in its place under docs/data. What is left out stays as the entry has it; a new entry
needs all that its kind asks for. `--delete` removes the entry of a file that is gone.
"""

import argparse
import hashlib
import json
import platform
from datetime import date
from typing import Any

import jax

from docs.claims import DATA, ROOT
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


def main() -> None:
    """Writes one entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="under docs/data, as frontier/accuracy.csv")
    parser.add_argument("--kind", choices=KINDS)
    for name in ("command", "date", "commit", "machine", "note", "model"):
        parser.add_argument(f"--{name}")
    for name in ("sets", "seeds"):
        parser.add_argument(f"--{name}", type=lambda text: int(text) if text.isdigit() else text)
    parser.add_argument("--key", type=int, help="the key of the test sets")
    parser.add_argument("--checkpoints", nargs="*", help="names of runs in checkpoints/")
    parser.add_argument("--from", nargs="*", help="files that it is derived from")
    parser.add_argument("--delete", action="store_true")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    file, delete = given.pop("file"), given.pop("delete")
    manifest = json.loads(PATH.read_text())
    if delete:
        del manifest[file]
    else:
        if "checkpoints" in given:
            given["checkpoints"] = digests(given["checkpoints"])
        new = {"date": str(date.today()), "versions": {"jax": jax.__version__, "python": platform.python_version()}}
        entry = (manifest.get(file) or new) | given | {"sha256": sha256(file)}
        if missing := lacking(entry):
            parser.error(f"{file}: give {', '.join(f'--{key}' for key in sorted(missing))}")
        manifest[file] = entry
    write_whole(PATH, json.dumps(dict(sorted(manifest.items())), indent=1, ensure_ascii=False) + "\n")
    print(f"{PATH.relative_to(ROOT)}: {file}")


if __name__ == "__main__":
    main()
