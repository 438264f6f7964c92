r"""The text of CLRS-Text as parts: fixed pieces of text, and the numbers of fields.

A text is a question and an answer, without hints: `minimum:\nkey: [0.548 0.715]\nmin:\n` and `0\n\n`.

Source: Markeeva et al., "The CLRS-Text algorithmic reasoning language benchmark", arXiv 2406.04229.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int

from studies.clrs_text.algorithms import ALGORITHMS, Kind

NUMBER = re.compile(r"-?\d+\.\d+(?:e-\d+)?|-?\de-\d+|\d+")
END = "\n\n"


class Field(NamedTuple):
    """A part of a text that holds numbers."""

    name: str
    kind: Kind


Parts = tuple[str | Field, ...]


@functools.cache
def question_parts(algorithm: str) -> Parts:
    r"""The parts of a question.

    >>> [part if isinstance(part, str) else part.name for part in question_parts("binary_search")]
    ['binary_search:\nkey: [', 'key', '], target: ', 'target', '\nreturn:\n']
    """
    input_parts = [_field(f"{name}: ", name, kind) for name, kind in ALGORITHMS[algorithm].inputs.items()]
    names = ", ".join(ALGORITHMS[algorithm].outputs)
    return _merged(f"{algorithm}:\n", *_separated(input_parts), f"\n{names}:\n")


@functools.cache
def answer_parts(algorithm: str) -> Parts:
    """The parts of an answer, whose last is its end."""
    return _merged(*_separated([_field("", *item) for item in ALGORITHMS[algorithm].outputs.items()]), END)


def _field(label: str, name: str, kind: Kind) -> Parts:
    return (f"{label}[", Field(name, kind), "]") if kind.is_list else (label, Field(name, kind))


def _separated(fields: Sequence[Parts]) -> Parts:
    return tuple(part for index, field in enumerate(fields) for part in ((", ",) if index else ()) + field)


def _merged(*parts: str | Field) -> Parts:
    """The same with neighbouring pieces of text as one, and without empty ones."""
    merged: list[str | Field] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged)


def spell(code: int, kind: Kind, decimals: int) -> str:
    """How a number is written: as Python writes it, so that there are no zeros at its end.

    >>> spell(430, Kind.DECIMAL, 3), spell(-1, Kind.DECIMAL, 3), spell(12, Kind.INTEGER, 3)
    ('0.43', '-0.0', '12')
    """
    if not kind.is_decimal:
        return str(code)
    return str(-(~code / 10**decimals) if code < 0 else code / 10**decimals)


def text_of(parts: Parts, fields: Mapping[str, Int[Array | np.ndarray, "..."]], decimals: int) -> str:
    r"""The text of these parts with the numbers of these fields.

    >>> text_of(question_parts("minimum"), {"key": np.array([548, 715])}, 3)
    'minimum:\nkey: [0.548 0.715]\nmin:\n'
    """

    def written(part: str | Field) -> str:
        if isinstance(part, str):
            return part
        codes = np.ravel(np.asarray(fields[part.name])).tolist()
        return " ".join(spell(code, part.kind, decimals) for code in codes)

    return "".join(map(written, parts))


def cut(text: str) -> list[str]:
    """Returns the numbers of a text and the pieces between them.

    >>> cut("[0.5 12]")
    ['[', '0.5', ' ', '12', ']']
    """
    pieces, place = [], 0
    for match in NUMBER.finditer(text):
        pieces += [text[place : match.start()], match.group()]
        place = match.end()
    return [piece for piece in (*pieces, text[place:]) if piece]


def number_of_each(pieces: Sequence[str]) -> list[int]:
    """Returns which number of a text each digit or point belongs to, and -1 for every other piece.

    >>> number_of_each(["key", ":", " [", "0", ".", "5", " ", "1", "2", "]"])
    [-1, -1, -1, 0, 0, 0, -1, 1, 1, -1]
    """
    inside = [piece != "" and piece in "0123456789." for piece in pieces]
    starts = [now and not before for now, before in zip(inside, [False, *inside])]
    return [count - 1 if now else -1 for count, now in zip(itertools.accumulate(starts), inside)]
