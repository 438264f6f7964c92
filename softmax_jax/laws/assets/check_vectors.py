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
    asked = parser.parse_args()
    if not asked.functions.is_file():
        sys.exit(f"error: {asked.functions} is no file: it must be a Python file with functions such as ssmax")
    functions = types.SimpleNamespace(**runpy.run_path(str(asked.functions)))
    files = {path.stem: path for path in sorted(asked.vectors.glob("*.json"))}
    found = [name for name in files if callable(getattr(functions, name, None))]
    if not found:
        sys.exit(f"error: {asked.functions} holds no function named as a file of {asked.vectors}: {', '.join(files)}")
    verdicts = {}
    for name in found:
        content = json.loads(files[name].read_text(encoding="utf-8"))
        verdicts[name] = verdict(content, functions, asked.tolerance)
        print(f"{name}: {verdicts[name]}")
    sys.exit(any(said != "agrees" for said in verdicts.values()))


def verdict(content, functions, tolerance=1e-5):
    """Says of the functions of one method that they agree, which mistake they make, or where they differ."""
    name, rows = content["method"], content["rows"]
    said = [call(getattr(functions, name), row) for row in rows]
    got = [np.full(len(row["logits"]), np.inf) if isinstance(one, str) else one for one, row in zip(said, rows)]
    right = [equal(one, row["weights"], tolerance) for one, row in zip(got, rows)]
    plain = [row["kind"] not in APART for row in rows]
    for mistake in content["mistakes"]:
        same = [equal(one, row["weights"], tolerance) for one, row in zip(map(numbers, mistake["weights"]), rows)]
        made = [equal(one, wrong, tolerance) for one, wrong in zip(got, mistake["weights"])]
        telling = [place for place, agrees in enumerate(same) if not agrees and (plain[place] or not all(right))]
        others = [place for place, agrees in enumerate(same) if agrees and plain[place]]
        if telling and all(made[place] for place in telling) and all(right[place] for place in others):
            return mistake["says"] + beside(rows, right, set(telling))
    wrong = [place for place, agrees in enumerate(right) if not agrees]
    if wrong:
        row, made = rows[wrong[0]], said[wrong[0]]
        where = ", ".join(sorted({rows[place]["kind"] for place in wrong}))
        given = made if isinstance(made, str) else "NaN" if np.isnan(made).all() else np.round(made, 6).tolist()
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
    """Says which other kinds of rows are wrong besides a mistake."""
    kinds = sorted({row["kind"] for place, row in enumerate(rows) if not right[place] and place not in telling})
    return f"; besides, rows of this kind differ: {', '.join(kinds)}" if kinds else ""


def call(function, row, *more):
    """Returns what a function gives for a row, in float64; says in words if it raises or gives another shape."""
    logits, visible = np.array(row["logits"], np.float64), np.array(row["visible"], bool)
    numbers_of_row = {key: tuple(value) if isinstance(value, list) else value for key, value in row["numbers"].items()}
    try:
        made = np.asarray(function(logits, visible, *more, **numbers_of_row), np.float64)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return made if made.shape == logits.shape else f"gives the shape {made.shape} for {logits.shape}"


def numbers(values):
    """An array, with NaN for null."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def equal(got, wanted, tolerance):
    """True if all numbers are as wanted, NaN where NaN is."""
    wanted = numbers(wanted)
    return bool(np.allclose(got, wanted, rtol=10 * tolerance, atol=tolerance, equal_nan=True))


if __name__ == "__main__":
    main()
