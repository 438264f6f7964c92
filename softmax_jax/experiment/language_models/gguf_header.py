"""Reads the header of a GGUF file: its metadata, and where its arrays lie.

The reader of the package gguf believes what a file says of itself: an array of metadata that claims 2^60 entries fills
the memory. This one compares every count with the bytes that are left.

Source: the specification of GGUF, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import dataclasses
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softmax_jax.experiment.language_models.keys import LARGEST_WEIGHTS, shown, unreadable
from softmax_jax.files import opened
from softmax_jax.refusal import Refusal

SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", "", "", "<Q", "<q", "<d")
"""The formats of the types of metadata, by their numbers; that of texts and of arrays is of its own."""
TEXT, ARRAY = 8, 9
MOST_ENTRIES = 2**24
"""Entries of an array of metadata at most: tokenizers have some 10^5 tokens and merges."""
MOST_KEYS = 2**16
"""Keys, and arrays, at most."""


class Place(NamedTuple):
    """The place of an array in a file."""

    shape: tuple[int, ...]
    """The axis that changes slowest first, as in numpy."""
    kind: int
    """The number of its type, which may be a quantized one."""
    start: int
    """Its first byte in the file."""


@dataclasses.dataclass(frozen=True)
class Header:
    """The metadata of a GGUF file, the places of its arrays, and all its bytes."""

    metadata: dict[str, Any]
    places: dict[str, Place]
    data: np.ndarray


class Cursor:
    """A place in a file, which moves past what is read."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.data, self.place = path, data, 0

    def refuse(self, problem: str) -> Refusal:
        """Returns the refusal of what stands here."""
        return Refusal(f"{self.path}: {problem} at byte {self.place}; download it again, or choose another model")

    def check_left(self, count: int, size: int, what: str) -> None:
        """Raises Refusal unless `count` entries of `size` bytes each are left."""
        if count * size > len(self.data) - self.place:
            raise self.refuse(f"{count:,} {what} do not fit into its {len(self.data):,} bytes")

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        self.check_left(count, 1, "bytes")
        self.place += count
        return self.data[self.place - count : self.place].tobytes()

    def number(self, form: str) -> Any:
        """Returns a number of a format of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        """Returns a text, which has its length in front."""
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError:
            raise self.refuse("a text is not in UTF-8") from None

    def value(self, kind: int) -> Any:
        """Returns a value of metadata."""
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if not 0 <= kind < len(SCALARS):
            raise self.refuse(f"there is no type of metadata {kind}")
        return self.number(SCALARS[kind])

    def array(self) -> list[Any]:
        """Returns an array of metadata."""
        kind, count = self.number("<I"), self.number("<Q")
        if count > MOST_ENTRIES:
            raise self.refuse(f"an array claims {count:,} entries, more than {MOST_ENTRIES:,},")
        if kind == TEXT:
            self.check_left(count, 8, "texts")
            return [self.text() for _ in range(count)]
        if not (0 <= kind < len(SCALARS) and SCALARS[kind]):
            raise self.refuse(f"there is an array of type {kind}")
        self.check_left(count, struct.calcsize(SCALARS[kind]), "numbers")
        return np.frombuffer(self.take(count * struct.calcsize(SCALARS[kind])), SCALARS[kind]).tolist()

    def count(self, what: str) -> int:
        """Returns the number of keys or arrays."""
        if (count := self.number("<Q")) > MOST_KEYS:
            raise self.refuse(f"it claims {count:,} {what}, more than {MOST_KEYS:,},")
        return count


def read_header(path: Path) -> Header:
    """Reads the header of a file. Raises Refusal for one that is no GGUF, is cut off, or claims too much."""
    with opened(path, LARGEST_WEIGHTS) as file:
        if len(file.peek()) < 24:
            raise unreadable(path, "it is too short for a GGUF")
        cursor = Cursor(path, np.asarray(np.memmap(file, np.uint8, "r")))  # pyright: ignore[reportArgumentType, reportCallIssue]
    if cursor.take(4) != b"GGUF":
        raise unreadable(path, "it does not start as a GGUF does")
    if (version := cursor.number("<I")) not in (2, 3):
        raise Refusal(f"{path} is of version {version} of GGUF: it must be 2 or 3, little-endian; convert it again")
    arrays, keys = cursor.count("arrays"), cursor.count("keys")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.text()
        if key in metadata:
            raise cursor.refuse(f"the key {shown(key)} is there twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    places = _places(cursor, arrays, metadata.get("general.alignment", 32))
    return Header(metadata, places, cursor.data)


def _places(cursor: Cursor, arrays: int, alignment: Any) -> dict[str, Place]:
    """Reads the places of the arrays, whose bytes start behind them at a multiple of the alignment."""
    if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise Refusal(f"{cursor.path}: general.alignment is {shown(alignment)}: it must be a power of 2 up to 2^20")
    places: dict[str, Place] = {}
    for _ in range(arrays):
        name = cursor.text()
        axes = cursor.number("<I")
        if not 1 <= axes <= 4:
            raise cursor.refuse(f"the array {shown(name)} has {axes} axes")
        shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
        if name in places or 0 in shape:
            raise cursor.refuse(f"the array {shown(name)} is there twice or is empty")
        places[name] = Place(shape, cursor.number("<I"), cursor.number("<Q"))
    start = -(-cursor.place // alignment) * alignment
    return {name: place._replace(start=start + place.start) for name, place in places.items()}
