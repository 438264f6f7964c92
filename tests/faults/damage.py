"""Ways to damage a file, each the same every time."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

KINDS = ("truncated", "flipped", "emptied", "removed", "pickle")


class CreatesFile:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def do(kind: str, path: Path, canary: Path, position: float = 0.5) -> None:
    """Damages a file in one of the ways: from a position, or at it, from 0 to 1 of the file."""
    data = b"" if kind == "pickle" else path.read_bytes()
    at = int(len(data) * position)
    match kind:
        case "truncated":
            path.write_bytes(data[:at])
        case "flipped":
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        case "emptied":
            path.write_bytes(b"")
        case "removed":
            path.unlink()
        case "pickle":
            path.write_bytes(pickle.dumps(CreatesFile(canary)))


def _link_to(path: Path, target: object) -> None:
    """Puts a link in the place of a file, if there is one."""
    path.unlink(missing_ok=True)
    path.symlink_to(str(target))


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _large(path: Path) -> None:
    """Makes a file of 4 TB that takes no room on a disk."""
    path.touch()
    os.truncate(path, 2**42)


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


UNREADABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (_fifo, "is a FIFO"),
    "device": (lambda path: _link_to(path, "/dev/zero"), "is a device"),
    "directory": (_directory, "is a directory"),
    "large": (_large, "has 4,398,046,511,104 bytes"),
    "loop": (lambda path: _link_to(path, path.name), "Too many levels of symbolic links"),
}
"""What may lie in the place of a file, and the words of its refusal: none may be waited for or read to its end."""

SETTINGS: dict[str, tuple[object, str]] = {
    "seeds": (0, "--seeds is 0"),
    "seeds   ": ("two", "seeds is 'two'"),
    "first_seed": (2**31 - 1, "--first-seed is 2147483647"),
    "steps ": (10**4000, "--steps is 1000"),
    "width  ": (None, "width is None"),
    "max_items": (10**9, "--max-items is 1000000000"),
    "l2": (float("nan"), "--l2 is nan"),
    "l2 ": ("x" * 10**5, "l2 is 'xxx"),
    "learning_rate": (float("inf"), "--learning-rate is inf"),
    "task": (["sort"], "task is ['sort']"),
    "task ": ("srt", "did you mean 'sort'"),
    "normalizer": ("softmaxx", "unknown normalizer 'softmaxx'"),
    "normalizer ": ("(" * 10**5, "cannot read the normalizer"),
    "normalizer  ": ("ssmax(s=1e999)", "s is inf"),
    "optimizer": ("chain(" * 10**4, "--optimizer is 'chain("),
    "optimizer_options": ({"b1": {"a": 1}}, "optimizer_options is {'b1': {'a': 1}}"),
    "schedule": ("join_schedules", "--schedule is join_schedules"),
    "schedule_options": ({"alpha": float("nan")}, "alpha is nan"),
    "a\nb": (1, r"'a\nb' is no setting"),
}
"""A setting with a value that no run has, and words of its refusal. Blanks make the name of a setting unique."""
