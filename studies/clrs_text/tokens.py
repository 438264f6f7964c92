"""The tokens of CLRS-Text: one for each number, or those of SmolLM2, which splits numbers.

A tokenizer is made from the parts of texts in two forms: as a function of a text, and as a compiled function of the
numbers.
"""

import abc
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from softmax_jax.files import read_json
from softmax_jax.refusal import Refusal
from studies.clrs_text.algorithms import Inputs, Kind, values_of
from studies.clrs_text.texts import NUMBER, Parts, answer_parts, cut, question_parts, spell

INTEGERS = 1024
"""Whole numbers have tokens up to this one, and so instances have no more nodes."""


class Tokenizer(abc.ABC):
    """From text to whole numbers and back, for the texts of some algorithms with numbers of so many decimals."""

    name: ClassVar[str]
    most_decimals: ClassVar[int]

    def __init__(self, algorithms: tuple[str, ...], decimals: int):
        self.decimals = decimals
        self.parts = [parts(name) for name in algorithms for parts in (question_parts, answer_parts)]
        self.literals = sorted({part for parts in self.parts for part in parts if isinstance(part, str)})

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many tokens there are."""

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a question or an answer. Raises Refusal for a text that has none."""

    @abc.abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens: of those that `encode` gave, the text it was given."""

    @abc.abstractmethod
    def features(self) -> Float[np.ndarray, "tokens features"]:
        """What is known of each token before training."""

    @abc.abstractmethod
    def literal(self, text: str) -> list[int]:
        """The tokens of a fixed piece of text."""

    @abc.abstractmethod
    def slots(self, codes: Int[Array, " numbers"], kind: Kind) -> tuple[Int[Array, "..."], Bool[Array, "..."]]:
        """The tokens of numbers, in as many slots as any such numbers take, and which slots are taken."""

    def compiled(
        self, parts: Parts, fields: Inputs, length: Int[Array, ""]
    ) -> tuple[Int[Array, " slots"], Bool[Array, " slots"]]:
        """The tokens of a text from its numbers, with slots that are not taken between them; what `encode` gives."""
        tokens, taken = [], []
        for part in parts:
            if isinstance(part, str):
                ids = jnp.asarray(self.literal(part), jnp.int32)
                present = jnp.ones(ids.shape, bool)
            else:
                codes = jnp.atleast_1d(fields[part.name]).astype(jnp.int32)
                ids, present = self.slots(codes, part.kind)
                numbers = length if part.kind.is_list else 1
                number = jnp.arange(ids.size, dtype=jnp.int32) // (ids.size // codes.size)
                present = present & (number < numbers)
            tokens.append(ids)
            taken.append(present)
        return jnp.concatenate(tokens), jnp.concatenate(taken)


class SplitTokenizer(Tokenizer):
    r"""The tokens of SmolLM2, which has none of two digits: a number is as many tokens as it has digits and signs.

    smollm2.json holds its tokens of the fixed pieces of text and of the characters of numbers. Its tokenizer cuts a
    text before and behind every digit, so these are the tokens of a whole text too, once the sign of a number is one
    token with the space or bracket before it.

    >>> tokenizer = SplitTokenizer(("minimum",), 3)
    >>> tokenizer.encode("minimum:\nkey: [0.5")
    [34577, 42, 198, 2393, 42, 933, 32, 30, 37]
    >>> tokenizer.pieces_of(tokenizer.encode("minimum:\nkey: [-0.5")[5:])
    [' [-', '0', '.', '5']
    """

    name = "smollm2"
    most_decimals = 5

    def __init__(self, algorithms: tuple[str, ...], decimals: int):
        super().__init__(algorithms, decimals)
        table = read_json(Path(__file__).with_name("smollm2.json"))
        self.tokens: dict[str, list[int]] = table["tokens"]
        self.pieces: dict[str, str] = table["pieces"]
        token_of_piece = {piece: int(token) for token, piece in self.pieces.items()}
        self.sign = token_of_piece["-"]
        self.signed = {
            token_of_piece[piece[:-1]]: token
            for piece, token in token_of_piece.items()
            if piece[:-1] and piece[-1] == "-"
        }
        """The token of what stands before a sign, and that of both."""

    @property
    def size(self) -> int:
        return 49_152

    def encode(self, text: str) -> list[int]:
        tokens = jnp.asarray([token for piece in cut(text) for token in self.literal(piece)], jnp.int32)
        joined, taken = self._joined(tokens, jnp.ones(tokens.shape, bool))
        return joined[taken].tolist()

    def compiled(
        self, parts: Parts, fields: Inputs, length: Int[Array, ""]
    ) -> tuple[Int[Array, " slots"], Bool[Array, " slots"]]:
        return self._joined(*super().compiled(parts, fields, length))

    def _joined(
        self, tokens: Int[Array, " slots"], taken: Bool[Array, " slots"]
    ) -> tuple[Int[Array, " slots"], Bool[Array, " slots"]]:
        """Puts one token in the slot of a sign for both it and what stands before it, whose slot becomes free."""
        places = jnp.arange(len(tokens), dtype=jnp.int32)
        last = jax.lax.cummax(jnp.where(taken, places, 0))
        before = jnp.concatenate([places[:1], last[:-1]])
        signs, free = taken & (tokens == self.sign), jnp.zeros(taken.shape, bool)
        for first, both in self.signed.items():
            here = signs & (tokens[before] == first)
            tokens = jnp.where(here, both, tokens)
            free = free.at[jnp.where(here, before, len(tokens))].set(True, mode="drop")
        return tokens, taken & ~free

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces_of(tokens))

    def pieces_of(self, tokens: Sequence[int] | Int[np.ndarray, " tokens"]) -> list[str]:
        """Returns the text of each token."""
        return [self.pieces[str(token)] for token in tokens]

    def features(self) -> Float[np.ndarray, "tokens features"]:
        """Nothing."""
        return np.zeros((self.size, 0), np.float32)

    def literal(self, text: str) -> list[int]:
        pieces = list(text) if NUMBER.fullmatch(text) else [text]
        for piece in pieces:
            if piece not in self.tokens:
                raise Refusal(f"{piece!r} has no token: the text must be one of CLRS-Text")
        return [token for piece in pieces for token in self.tokens[piece]]

    def slots(self, codes: Int[Array, " numbers"], kind: Kind) -> tuple[Int[Array, "..."], Bool[Array, "..."]]:
        """A space before each number but the first, and the number from the left."""
        table, least = self._spelled(kind.is_decimal)
        rows = jnp.asarray(table)[codes - least]
        space = jnp.full((len(codes), 1), self.tokens[" "][0], jnp.int32).at[0].set(-1)
        slots = jnp.concatenate([space, rows], 1).reshape(-1)
        return jnp.maximum(slots, 0), slots >= 0

    @functools.cache  # noqa: B019  a tokenizer lives as long as its task
    def _spelled(self, decimal: bool) -> tuple[Int[np.ndarray, "numbers characters"], int]:
        """The tokens of every number, -1 behind its end, and the code of the first."""
        least, most = (-(10**self.decimals), 10**self.decimals) if decimal else (0, INTEGERS)
        kind = Kind.DECIMAL if decimal else Kind.INTEGER
        spelled = [self.literal(spell(code, kind, self.decimals)) for code in range(least, most)]
        longest = max(map(len, spelled))
        return np.array([row + [-1] * (longest - len(row)) for row in spelled], np.int32), least


class NumberTokenizer(Tokenizer):
    r"""One token for each number, and one for the text between two; the space between numbers has none.

    A token of a number is known by its value: sines and cosines of it, with periods from the whole range down to
    where neighbours differ.

    >>> tokenizer = NumberTokenizer(("minimum",), 3)
    >>> len(tokenizer.encode("minimum:\nkey: [0.548 0.715]\nmin:\n"))
    4
    """

    name = "number"
    most_decimals = 4

    @property
    def size(self) -> int:
        return INTEGERS + 2 * 10**self.decimals + len(self.literals)

    def encode(self, text: str) -> list[int]:
        return [self._token(piece) for piece in cut(text) if piece != " "]

    def _token(self, piece: str) -> int:
        token = self._tokens.get(piece)
        if token is None:
            raise Refusal(f"{piece!r} has no token: the text must be one of CLRS-Text with {self.decimals} decimals")
        return token

    def decode(self, tokens: Sequence[int]) -> str:
        pieces, text = self._pieces, ""
        for token in tokens:
            after_number = text[-1:].isdigit()
            text += " " * (after_number and pieces[token][-1].isdigit()) + pieces[token]
        return text

    @functools.cached_property
    def _pieces(self) -> list[str]:
        """The text of each token."""
        scale = 10**self.decimals
        whole = (spell(number, Kind.INTEGER, self.decimals) for number in range(INTEGERS))
        others = (spell(code, Kind.DECIMAL, self.decimals) for code in range(-scale, scale))
        return [*whole, *others, *self.literals]

    @functools.cached_property
    def _tokens(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self._pieces)}

    def features(self) -> Float[np.ndarray, "tokens features"]:
        scale = 10**self.decimals
        whole = np.arange(INTEGERS), np.geomspace(4, 4 * INTEGERS, 16)
        others = values_of(np.arange(-scale, scale), self.decimals), np.geomspace(4 / scale, 4, 16)
        blocks = [_waves(*whole), _waves(*others), np.zeros((len(self.literals), 0))]
        return _block_diagonal(blocks).astype(np.float32)

    def literal(self, text: str) -> list[int]:
        return [self._token(text)]

    def slots(self, codes: Int[Array, " numbers"], kind: Kind) -> tuple[Int[Array, "..."], Bool[Array, "..."]]:
        tokens = codes + (INTEGERS + 10**self.decimals) * kind.is_decimal
        return tokens, jnp.ones(tokens.shape, bool)


def _waves(
    numbers: Shaped[np.ndarray, " tokens"], periods: Float[np.ndarray, " waves"]
) -> Float[np.ndarray, "tokens features"]:
    """One, and sines and cosines of numbers."""
    angles = 2 * np.pi * numbers[:, None] / periods
    return np.concatenate([np.ones((len(numbers), 1)), np.sin(angles), np.cos(angles)], 1)


def _block_diagonal(blocks: Sequence[Float[np.ndarray, "_ _"]]) -> Float[np.ndarray, "tokens features"]:
    width = sum(block.shape[1] for block in blocks)
    starts = np.cumsum([0, *(block.shape[1] for block in blocks)])
    return np.concatenate(
        [np.pad(block, ((0, 0), (start, width - start - block.shape[1]))) for block, start in zip(blocks, starts)]
    )


TOKENIZERS: dict[str, type[Tokenizer]] = {kind.name: kind for kind in (NumberTokenizer, SplitTokenizer)}
