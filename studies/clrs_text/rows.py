"""Where the texts of a batch lie: packed into rows of equal width, which is known before any is drawn."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from studies.clrs_text.algorithms import ALGORITHMS
from studies.clrs_text.texts import answer_parts, question_parts
from studies.clrs_text.tokens import TOKENIZERS, Tokenizer

NONE = -1
"""The text of a slot that holds no token."""


class Packed(NamedTuple):
    """Where everything of a training batch lies, known before it is drawn; numpy arrays as in `Texts`."""

    slots: Int[np.ndarray, "rows width"]
    """Which of all the tokens drawn, one after the other, each slot takes."""
    text: Int[np.ndarray, "rows width"]
    read: Int[np.ndarray, " answers"]
    answers: Int[np.ndarray, " answers"]
    """Which of all the tokens drawn the answers are."""
    text_index: Int[np.ndarray, " answers"]


@functools.cache
def tokenizer_of(name: str, decimals: int) -> Tokenizer:
    """The tokenizer of that name for the texts of all algorithms, with numbers of so many decimals."""
    return TOKENIZERS[name](tuple(ALGORITHMS), decimals)


@functools.cache
def slots_of(tokenizer: str, decimals: int, algorithm: str, length: int) -> tuple[int, int]:
    """The most tokens of a question and of an answer at a length."""
    fields = {**ALGORITHMS[algorithm].inputs, **ALGORITHMS[algorithm].outputs}

    def tokens() -> list[jax.Array]:
        numbers = {name: jnp.zeros(length if kind.is_list else (), jnp.int32) for name, kind in fields.items()}
        compiled = functools.partial(
            tokenizer_of(tokenizer, decimals).compiled, fields=numbers, length=jnp.int32(length)
        )
        return [compiled(parts(algorithm))[0] for parts in (question_parts, answer_parts)]

    question, answer = jax.eval_shape(tokens)
    return question.size, answer.size


@functools.lru_cache(maxsize=64)
def packed_rows(tokenizer: str, decimals: int, algorithms: tuple[str, ...], lengths: tuple[int, ...]) -> Packed:
    """The rows of one text of every algorithm and length, drawn with room for the longest.

    All questions of an algorithm are drawn before its answers, each against the right of its room, answers against
    the left.
    """
    texts, start = [], 0
    for name in algorithms:
        question_room, answer_room = slots_of(tokenizer, decimals, name, max(lengths))
        answer_start = start + question_room * len(lengths)
        for index, length in enumerate(lengths):
            question, answer = slots_of(tokenizer, decimals, name, length)
            end, first = start + question_room * (index + 1), answer_start + answer_room * index
            texts.append((np.arange(end - question, end), np.arange(first, first + answer)))
        start = answer_start + answer_room * len(lengths)
    taken = [len(question) + len(answer) - 1 for question, answer in texts]  # nothing follows the end of an answer
    rows = first_fit(taken, max(taken))
    slots, text = np.zeros((len(rows), max(taken)), np.int32), np.full((len(rows), max(taken)), NONE, np.int32)
    read, answers, text_index = [], [], []
    for row, members in enumerate(rows):
        place = 0
        for index in members:
            question, answer = texts[index]
            here = slice(place, place + taken[index])
            slots[row, here], text[row, here] = np.concatenate([question, answer[:-1]]), index
            read.append(row * max(taken) + place + len(question) - 1 + np.arange(len(answer)))
            answers.append(answer)
            text_index.append(np.full(len(answer), index))
            place += taken[index]
    return Packed(slots, text, *(np.concatenate(part).astype(np.int32) for part in (read, answers, text_index)))


def first_fit(sizes: list[int], width: int) -> list[list[int]]:
    """Which go into which row: the largest first, each into the first row with space for it.

    >>> first_fit([2, 5, 3, 1], 6)
    [[1, 3], [2, 0]]
    """
    rows: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        fitting = [row for row in rows if sum(sizes[other] for other in row) + sizes[index] <= width]
        if fitting:
            fitting[0].append(index)
        else:
            rows.append([index])
    return rows
