"""Compares functions of any framework with the vectors of softmax_jax: python check_vectors.py VECTORS FUNCTIONS.py

FUNCTIONS.py holds a function for each method that is to be compared, under the name of the method and called as

    ssmax(logits, visible, s, bias) -> weights

with one row: a numpy array of float64 logits, one of booleans, and the numbers of the method by name. What it returns
is read by numpy.asarray. A function ssmax_gradient(logits, visible, cotangent, s, bias), if there is one, returns the
gradient of Σ cotangent·weights. Needs numpy only.
"""

import argparse
import json
import pathlib
import runpy
import sys
import types

import numpy as np

APART = ("empty", "huge", "one entry")
"""Kinds of rows that say little of the formula, and are reported by themselves."""


def main():
    """Prints a line for each method; ends with status 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=pathlib.Path, help="directory of the JSON files")
    parser.add_argument("functions", type=pathlib.Path, help="Python file of the functions")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of a weight; 1e-2 for bfloat16")
    arguments = parser.parse_args()
    if not arguments.functions.is_file():
        sys.exit(f"error: {arguments.functions} is no file: it must be a Python file with functions such as ssmax")
    functions = types.SimpleNamespace(**runpy.run_path(str(arguments.functions)))
    files = {path.stem: path for path in sorted(arguments.vectors.glob("*.json"))}
    compared = [name for name in files if callable(getattr(functions, name, None))]
    if not compared:
        sys.exit(
            f"error: {arguments.functions} holds no function named as a file of {arguments.vectors}: {', '.join(files)}"
        )
    verdicts = {}
    for name in compared:
        content = json.loads(files[name].read_text(encoding="utf-8"))
        verdicts[name] = verdict(content, functions, arguments.tolerance)
        print(f"{name}: {verdicts[name]}")
    sys.exit(any(text != "agrees" for text in verdicts.values()))


def verdict(content, functions, tolerance=1e-5):
    """Returns in words whether the functions of one method agree, which mistake they make, or where they differ."""
    name, rows = content["method"], content["rows"]
    answers = [call(getattr(functions, name), row) for row in rows]
    actual = [
        np.full(len(row["logits"]), np.inf) if isinstance(answer, str) else answer for answer, row in zip(answers, rows)
    ]
    right = [equal(weights, row["weights"], tolerance) for weights, row in zip(actual, rows)]
    plain = [row["kind"] not in APART for row in rows]
    for mistake in content["mistakes"]:
        same = [equal(numbers(wrong), row["weights"], tolerance) for wrong, row in zip(mistake["weights"], rows)]
        made = [equal(weights, wrong, tolerance) for weights, wrong in zip(actual, mistake["weights"])]
        telling = [place for place, agrees in enumerate(same) if not agrees and (plain[place] or not all(right))]
        others = [place for place, agrees in enumerate(same) if agrees and plain[place]]
        if telling and all(made[place] for place in telling) and all(right[place] for place in others):
            return mistake["says"] + beside(rows, right, set(telling))
    wrong = [place for place, agrees in enumerate(right) if not agrees]
    if wrong:
        row, answer = rows[wrong[0]], answers[wrong[0]]
        where = ", ".join(sorted({rows[place]["kind"] for place in wrong}))
        given = answer if isinstance(answer, str) else "NaN" if np.isnan(answer).all() else np.round(answer, 6).tolist()
        if all(rows[place]["kind"] in APART for place in wrong):
            return f"agrees, but for rows of this kind: {where} ({given})"
        return (
            f"differs in {len(wrong)} of {len(rows)} rows ({where}); the first, with {row['numbers']}: logits "
            f"{row['logits']}, visible {row['visible']}: {given}, wanted {row['weights']}"
        )
    gradient = getattr(functions, f"{name}_gradient", None)
    for row in rows if gradient else []:
        slopes = call(gradient, row, np.cos(np.arange(len(row["logits"]))))
        if isinstance(slopes, str) or not equal(slopes, row["gradient"], 10 * tolerance):
            return f"weights agree; the gradient of a row ({row['kind']}) is {slopes}, wanted {row['gradient']}"
    return "agrees"


def beside(rows, right, telling):
    """Returns in words which other kinds of rows are wrong besides a mistake."""
    kinds = sorted({row["kind"] for place, row in enumerate(rows) if not right[place] and place not in telling})
    return f"; besides, rows of this kind differ: {', '.join(kinds)}" if kinds else ""


def call(function, row, *more):
    """Returns what a function gives for a row, in float64, or in words that it raises or gives another shape."""
    logits, visible = np.array(row["logits"], np.float64), np.array(row["visible"], bool)
    numbers_of_row = {key: tuple(value) if isinstance(value, list) else value for key, value in row["numbers"].items()}
    try:
        values = np.asarray(function(logits, visible, *more, **numbers_of_row), np.float64)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return values if values.shape == logits.shape else f"gives the shape {values.shape} for {logits.shape}"


def numbers(values):
    """Returns an array, with NaN for null."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def equal(actual, expected, tolerance):
    """Returns True if all numbers are those expected, NaN where NaN is."""
    expected = numbers(expected)
    return bool(np.allclose(actual, expected, rtol=10 * tolerance, atol=tolerance, equal_nan=True))


if __name__ == "__main__":
    main()
