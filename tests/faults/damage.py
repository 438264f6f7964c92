"""Ways to damage a file, each the same every time."""

import pickle
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
