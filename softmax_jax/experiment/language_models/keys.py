"""Reads the keys of a configuration so that none is overlooked.

Every key is read, has a value that changes nothing, is named in a table of `known_keys`, or is refused. A key whose
value is null says nothing.
"""

import dataclasses
import fnmatch
import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from softmax_jax.experiment.language_models.known_keys import Table
from softmax_jax.files import opened, read_bytes
from softmax_jax.refusal import Refusal

LARGEST_OBJECT = 2**24
"""Bytes of a config.json or an index at most."""
LARGEST_WEIGHTS = 2**50
"""Bytes of a file of arrays at most, which is mapped and not read."""
MOST = 2**31 - 1
"""Positions, layers, heads and features at most, which are counted in int32."""
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60
SHORT.maxlevel = 2


def shown(value: Any) -> str:
    """Returns a value of a file in a line: its start and end where it is long.

    >>> shown("a tale of many words " * 10**6), shown(list(range(10**6)))
    ("'a tale of many words a tale... words a tale of many words '", '[0, 1, 2, 3, 4, 5, ...]')
    """
    return SHORT.repr(value)


def listed(key: str, table: Table) -> bool:
    """Returns whether a key is in a table of harmless ones."""
    return any(fnmatch.fnmatchcase(key, name) for _, names in table for name in names.split())


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of a configuration and the set of those that were read.

    `prefix` is put before the keys that are read; refusals show it.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    read: set[str] = dataclasses.field(default_factory=set)

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raises the refusal of a value."""
        value = self.values.get(self.prefix + key)
        raise Refusal(f"{self.path}: {self.prefix + key} is {shown(value)}: {rule}")

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or the default if it is absent or null, and notes the key as read."""
        self.read.add(self.prefix + key)
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def needed(self, key: str) -> Any:
        """Returns the value of a key. Raises Refusal if it is absent."""
        if (value := self.get(key)) is None:
            raise Refusal(f"{self.path} does not say {self.prefix + key}: it must, so name a llama-like model")
        return value

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int | None:
        """Returns a whole number from 1 on, or the default."""
        value = self.get(key, default)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            self.refuse(key, f"it must be a whole number from 1 to {most}; choose another model")
        return value

    def counted(self, key: str, most: int = MOST) -> int:
        """Returns a whole number from 1 on. Raises Refusal if it is absent."""
        self.needed(key)
        return self.whole(key, most=most) or 0

    def number(self, key: str, default: float | None, least: float, most: float) -> float | None:
        """Returns a number between two others, or the default."""
        value = self.get(key, default)
        if value is None:
            return None
        if type(value) not in (int, float) or not least <= value <= most:
            self.refuse(key, f"it must be a number from {least:g} to {most:g}; choose another model")
        return float(value)

    def switch(self, key: str, default: bool) -> bool:
        """Returns a truth value, or the default."""
        value = self.get(key, default)
        if type(value) is not bool:
            self.refuse(key, "it must be true or false; choose another model")
        return value

    def only(self, key: str, values: Iterable[Any]) -> None:
        """Raises Refusal for another value than those that the decoder computes."""
        values = tuple(values)
        value = self.get(key, values[0])
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values):
            self.refuse(key, f"this decoder computes {' or '.join(map(repr, values))} only; choose another model")

    def close(self, harmless: Table) -> None:
        """Raises Refusal for a key that was not read and is not known to be harmless."""
        for key, value in self.values.items():
            if key in self.read or value is None or listed(key, harmless):
                continue
            rule = "this decoder does not know the key, which may change what is computed; choose another model"
            raise Refusal(f"{self.path}: {shown(key)[1:-1]} is {shown(value)}: {rule}")


def known_architecture(name: Any, known: Iterable[str], path: Path) -> str:
    """Returns the name of an architecture. Raises Refusal for one that is not known."""
    if not isinstance(name, str) or name not in known:
        raise Refusal(f"{path} holds the architecture {shown(name)}: it must be one of {', '.join(known)}")
    return name


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object that a file of JSON holds. Raises Refusal for anything else, and for a repeated key."""
    content = read_bytes(path, LARGEST_OBJECT)
    try:
        value = json.loads(content, object_pairs_hook=_once)
    except RecursionError:
        raise unreadable(path, "it is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, of a whole number of too many digits
        raise unreadable(path, str(error).partition(";")[0]) from None
    if not isinstance(value, dict):
        raise Refusal(f"{path} holds {shown(value)}: it must be an object, with keys and values")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {shown(name)} twice")
    return value


def unreadable(path: Path, problem: object) -> Refusal:
    """Returns the refusal of a file that is not what its name says, with what it is where its start shows it."""
    with opened(path, LARGEST_WEIGHTS) as file:
        start = file.read(64).lstrip()
    if start.startswith(b"version https://git-lfs"):
        return Refusal(f"{path} is a pointer of git-lfs, not the file: fetch it with git lfs pull")
    if start.startswith(b"<"):
        return Refusal(f"{path} is a web page, not the file: download the file itself")
    return Refusal(f"{path} cannot be read: {' '.join(str(problem).split())[:200]}; download it again")
