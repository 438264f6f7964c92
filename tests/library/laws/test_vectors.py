"""The shipped vectors are those of the command, right by the plain formulas, and tell mistakes by name."""

import json
import runpy
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.commands import vectors as command
from softmax_jax.laws.vectors import MISTAKES, N, mistaken, text_of
from tests.library.laws.references import expected
from tests.tiers import methods

SHIPPED = Path(__file__).parents[3] / "docs" / "vectors"
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(SHIPPED.glob("*.json"))}
RUNNER = runpy.run_path(str(command.RUNNER))


def test_each_registered_method_has_twenty_rows_of_every_kind_and_few_bytes():
    assert FILES.keys() == sj.METHODS.keys()
    kinds = {"ordinary", "negative", "masked", "padded", "one entry", "flat", "near ties", "huge", "empty"}
    assert all(len(one["rows"]) >= 20 and {row["kind"] for row in one["rows"]} == kinds for one in FILES.values())
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1e6


@pytest.mark.parametrize("name", methods())
def test_the_shipped_file_is_what_the_command_writes(name):
    written = json.loads(text_of(name))
    for row, shipped in zip(written["rows"], FILES[name]["rows"], strict=True):
        for key in "weights", "gradient":
            np.testing.assert_allclose(row.pop(key), shipped[key], rtol=1e-9, atol=1e-13)
        assert row == {key: value for key, value in shipped.items() if key not in ("weights", "gradient")}
    assert [one["says"] for one in written["mistakes"]] == [one["says"] for one in FILES[name]["mistakes"]]


@pytest.mark.parametrize(("name", "mistake"), [(name, one) for name, of in MISTAKES.items() for one in of])
def test_each_mistake_is_named(name, mistake):
    def wrong(z, visible, **numbers):
        return mistaken(mistake, MISTAKES[name][mistake], z, visible, numbers)

    assert RUNNER["verdict"](FILES[name], types.SimpleNamespace(**{name: wrong})) == mistake


def softmax(z, visible):
    shifted = np.where(visible, z - np.max(z, where=visible, initial=-1e9), -np.inf)
    return np.exp(shifted) / max(np.exp(shifted).sum(), 1e-9)


def test_what_is_right_agrees_and_other_faults_are_described():
    def verdict(weigh, **more):
        return RUNNER["verdict"](FILES["softmax"], types.SimpleNamespace(softmax=weigh, **more))

    def gradient(z, visible, cotangent):
        weights = softmax(z, visible)
        return weights * (cotangent - weights @ cotangent)

    assert verdict(softmax) == verdict(softmax, softmax_gradient=gradient) == "agrees"
    assert verdict(softmax, softmax_gradient=lambda *_: np.ones(N)).startswith("weights agree; the gradient of a row")
    assert verdict(lambda z, visible: softmax(2 * z, visible)).startswith("differs in 1")
    assert "gives the shape (3,) for (10,)" in verdict(lambda z, visible: z[:3])
    assert "raises ZeroDivisionError" in verdict(lambda z, visible: 1 / 0)
    uniform = verdict(lambda z, visible: softmax(z, visible) if visible.any() else np.full(N, 1 / N))
    assert uniform.startswith("agrees, but for rows of this kind: empty ([0.1, ")


def test_the_command_writes_all_files_and_the_runner_needs_numpy_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "METHODS", {"softmax": sj.METHODS["softmax"]})
    monkeypatch.setattr(sys, "argv", ["vectors", str(tmp_path / "vectors")])
    command.main()
    assert "wrote 1 method and check_vectors.py to " in capsys.readouterr().out
    run = [sys.executable, "-S", str(tmp_path / "vectors" / "check_vectors.py"), str(tmp_path / "vectors")]
    mine = "import numpy as np\ndef softmax(z, visible): return np.ones(10) / 10"
    for name, text, said in ("mine.py", mine, "softmax: differs in "), ("nothing.py", "", "holds no function named as"):
        (tmp_path / name).write_text(text)
        environment = {"PYTHONPATH": str(Path(np.__file__).parents[1])}
        done = subprocess.run([*run, str(tmp_path / name)], capture_output=True, text=True, env=environment)
        assert done.returncode == 1
        assert said in done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_weights_and_a_gradient_at_default_numbers_are_those_of_the_plain_formula(name):
    rows = FILES[name]["rows"][:12]
    logits, where, weights = (np.array([row[key] for row in rows]) for key in ("logits", "visible", "weights"))
    where = where.astype(bool)
    np.testing.assert_allclose(weights, expected(name, logits, where), rtol=1e-9, atol=1e-12)
    if name in ("softmax", "ssmax", "softpick", "sigmoid"):
        moved = logits[3] + 1e-6 * np.concatenate([np.eye(N), -np.eye(N)])
        sums = expected(name, moved, np.broadcast_to(where[3], moved.shape)) @ np.cos(np.arange(N))
        np.testing.assert_allclose(rows[3]["gradient"], (sums[:N] - sums[N:]) / 2e-6, atol=1e-8)
