"""Ways to damage a file, each the same every time."""

import pickle
from pathlib import Path

PARTS = 20


class CreatesFile:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def truncate(path, part):
    """Keeps so many twentieths of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * part // PARTS])


def flip(path, position):
    """Turns over one bit, at a position from 0 to 1 of the file."""
    data = bytearray(path.read_bytes())
    bit = min(int(8 * len(data) * position), 8 * len(data) - 1)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def disguise(path, canary):
    """Puts a pickle in the place of a file."""
    path.write_bytes(pickle.dumps(CreatesFile(canary)))


def do(kind, path: Path, amount, canary):
    """Damages a file in one of the ways."""
    match kind:
        case "truncated":
            truncate(path, amount)
        case "flipped":
            flip(path, amount)
        case "emptied":
            path.write_bytes(b"")
        case "removed":
            path.unlink()
        case "pickle":
            disguise(path, canary)
