import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from studies.clrs_text.algorithms import ALGORITHMS, Kind, codes_of, values_of
from studies.clrs_text.texts import answer_parts, question_parts, spell, text_of
from studies.clrs_text.tokens import TOKENIZERS, NumberTokenizer, SplitTokenizer
from tests.studies.clrs_text.instances import LENGTH, ROOM, drawn, without_room

ALL = tuple(ALGORITHMS)


@functools.cache
def tokenizer(name, decimals):
    return TOKENIZERS[name](ALL, decimals)


def instances(algorithm, decimals, length, room):
    """Each with the parts of its texts and the numbers in them, as held and without what is behind the length."""
    for parts, fields in zip((question_parts, answer_parts), drawn(algorithm, length, room, decimals)):
        for index in range(3):
            held = {name: jnp.asarray(values[index]) for name, values in fields.items()}
            yield parts(algorithm), held, without_room(fields, length, index)


def test_the_texts_are_those_of_the_benchmark():
    """As dm-clrs 2.0.3 writes some; tests/parity compares all with those that it draws."""
    codes = functools.partial(codes_of, decimals=3)
    numbers = np.array([0.417, 0.72, 0.0, 0.302, 0.146])
    ends = np.array([0.417, 0.72, 0.345, 0.396, 0.538])
    letters = {"string": np.array([0, 0, 0, 0, 1]), "key": np.array([3, 1, 0, 3, 1])}
    starts = codes(np.array([0.092, 0.186, 0.0, 0.302, 0.146]))
    expected = {
        "minimum": ({"key": codes(numbers)}, "minimum:\nkey: [0.417 0.72 0.0 0.302 0.146]\nmin:\n", "2\n\n"),
        "kmp_matcher": (letters, "kmp_matcher:\nstring: [0 0 0 0 1], key: [3 1 0 3 1]\nmatch:\n", "1\n\n"),
        "activity_selector": (
            {"s": starts, "f": codes(ends)},
            "activity_selector:\ns: [0.092 0.186 0.0 0.302 0.146], f: [0.417 0.72 0.345 0.396 0.538]\nselected:\n",
            "[0 0 1 0 0]\n\n",
        ),
    }
    for name, (inputs, question, answer) in expected.items():
        held = {field: jnp.asarray(values, jnp.int32) for field, values in inputs.items()}
        outputs = ALGORITHMS[name].solve(held, jnp.int32(5), 3)
        assert text_of(question_parts(name), inputs, 3) == question
        assert text_of(answer_parts(name), outputs, 3) == answer


def test_numbers_are_truncated_and_keep_their_sign():
    values = np.array([0.5489, 0.9999, 0.0, -0.0004, -0.9999, 0.58])
    assert values_of(codes_of(values, 3), 3).tolist() == [0.548, 0.999, 0.0, -0.0, -0.999, 0.58]
    assert [spell(int(code), Kind.DECIMALS, 3) for code in codes_of(values, 3)][3] == "-0.0"
    assert spell(1, Kind.DECIMAL, 5) == "1e-05"


def compiled(one, parts, held, length):
    tokens, there = jax.jit(one.compiled, static_argnums=0)(parts, held, jnp.int32(length))
    return np.asarray(tokens)[np.asarray(there)].tolist()


MOST = [(name, kind.most_decimals, 6) for name, kind in TOKENIZERS.items()]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "decimals", "room"),
    [
        ("number", 3, ROOM),
        ("smollm2", 3, ROOM),
        *(pytest.param(*row, marks=pytest.mark.rare) for row in (("number", 1, 6), *MOST)),
    ],
)
def test_compiled_tokens_are_those_of_the_text_which_comes_back(name, decimals, room):
    length = min(LENGTH, room)
    for algorithm in ("find_maximum_subarray_kadane", "activity_selector", "kmp_matcher"):
        for parts, held, numbers in list(instances(algorithm, decimals, length, room))[::3]:
            text = text_of(parts, numbers, decimals)
            tokens = tokenizer(name, decimals).encode(text)
            assert tokenizer(name, decimals).decode(tokens) == text
            assert compiled(tokenizer(name, decimals), parts, held, length) == tokens


def test_a_number_is_one_token_or_its_characters():
    text = "minimum:\nkey: [0.548 0.7]\nmin:\n"
    assert len(tokenizer("number", 3).encode(text)) == 4
    split = SplitTokenizer(ALL, 3)
    assert [split.pieces[str(token)] for token in split.encode(text)][6:15] == list("0.548 0.7")


@pytest.mark.parametrize(("name", "text"), [("number", "0.5489"), ("number", "1024"), ("smollm2", "key?")])
def test_a_text_without_tokens_is_refused(name, text):
    with pytest.raises(ValueError, match="has no token"):
        tokenizer(name, 3).encode(text)


def test_neighbouring_numbers_differ_in_what_is_known_of_them():
    features = NumberTokenizer(ALL, 3).features()
    distances = np.linalg.norm(np.diff(features[:3024], axis=0), axis=1)
    assert (distances < 0.1).sum() == 1  # the two zeros, which only their learned vectors tell apart
    assert not SplitTokenizer(ALL, 3).features().size
