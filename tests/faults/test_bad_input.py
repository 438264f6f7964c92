"""Mistakes are refused in one line with the value, the rule and the remedy, before anything is compiled or written."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import pytest

import softmax_jax as sj
from tests.faults.bad_input import CALLS, COMMANDS, ROOT
from tests.tiers import full_except


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    """What a process of its own answers to the tables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    # Settings of the devices that are given keep the scripts from making their own, which one process does once.
    environment = plain | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    command = [sys.executable, "-m", "tests.faults.bad_input"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(CALLS + COMMANDS), f"{(CALLS + COMMANDS)[len(found)]} was not refused: {done.stderr}"
    return found


def faults(answer: dict[str, Any], words: Sequence[str]) -> list[str]:
    """What is wrong with an answer."""
    found = [f"does not say {word!r}" for word in words if word not in answer["said"]]
    return found + ["compiled a program"] * bool(answer["compiled"])


@pytest.mark.full
def test_mistakes_in_calls_are_named_with_their_rule_and_remedy_before_anything_is_compiled(answers):
    wrong = []
    for (_, *words), answer in zip(CALLS, answers):
        found = faults(answer, words)
        found += [answer["error"]] * (answer["error"] not in ("Refusal", "WrongType"))
        found += ["more than one line"] * ("\n" in answer["said"])
        wrong += [f"{words}: {found}: {answer['said']}"] * bool(found)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
def test_mistakes_on_command_lines_end_in_one_line_and_status_2_and_leave_nothing_behind(answers):
    wrong = []
    for (command, *words), answer in zip(COMMANDS, answers[len(CALLS) :]):
        found = faults(answer, ["error: ", *words])
        found += [f"ends in {answer['status']}"] * (answer["status"] != 2)
        found += ["not one line"] * (answer["said"].count("\n") != 1)
        found += [f"leaves {answer['left']}"] * (answer["left"] != {"a.txt": "not what you want\n"})
        wrong += [f"{command}: {found}: {answer['said']}"] * bool(found)
    assert not wrong, "\n".join(wrong)


def test_a_row_without_entries_is_no_bad_input():
    for name in "entmax", "stieltjes", "top_k":
        assert sj.normalizer(name)(jnp.zeros((3, 0))).shape == (3, 0)


EXTREMES = (
    "entmax(alpha=1e6)",
    "stieltjes(q=1e-6)",
    "stieltjes(q=1e6)",
    "length_scaled(m=1e37)",
    "sink_softmax(sink=1e37)",
)


@pytest.mark.parametrize("spec", full_except(EXTREMES, EXTREMES[0]))
def test_the_largest_numbers_that_are_allowed_give_finite_weights(spec: str):
    assert jnp.isfinite(sj.normalizer(spec)(jnp.arange(3.0))).all()


@pytest.mark.full
def test_a_process_ends_in_one_line_and_leaves_nothing_behind(tmp_path: Any):
    """As the table says of commands within a process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    del environment["XLA_FLAGS"]
    done = subprocess.run(
        [sys.executable, ROOT / "report.py", "nowhere"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nowhere does not exist" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
