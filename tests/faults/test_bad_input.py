"""Mistakes are refused in one line with the value, the rule and the remedy, before anything is compiled or written."""

import json
import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import pytest

import softmax_jax as sj
from tests.faults.bad_input import CALLS, COMMANDS, ROOT
from tests.tiers import full_except


def faults(mistake: Any, words: list[str], answer: dict[str, Any]) -> list[str]:
    """What is wrong with the answer to a mistake."""
    found = [f"does not say {word!r}" for word in words if word not in answer["said"]]
    found += ["compiled a program"] * bool(answer["compiled"])
    if isinstance(mistake, str):
        found += [f"ends in {answer['status']}"] * (answer["status"] != 2)
        found += ["not one line"] * (not answer["said"].startswith("error: ") or answer["said"].count("\n") != 1)
        return found + [f"leaves {answer['left']}"] * (answer["left"] != {"a.txt": "not what you want\n"})
    return found + [answer["error"]] * (answer["error"] not in ("Refusal", "WrongType") or "\n" in answer["said"])


@pytest.mark.full
def test_mistakes_are_named_with_their_rule_and_remedy_in_one_line_and_leave_nothing_behind():
    """As a process of its own answers to both tables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    # Settings of the devices that are given keep the scripts from making their own, which one process does once.
    environment = plain | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    command = [sys.executable, "-m", "tests.faults.bad_input"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    answers, table = [json.loads(line) for line in done.stdout.splitlines()], CALLS + COMMANDS
    assert len(answers) == len(table), f"{table[len(answers)]} was not refused: {done.stderr}"
    wrong = [
        f"{mistake if isinstance(mistake, str) else words}: {found}: {answer['said']}"
        for (mistake, *words), answer in zip(table, answers)
        if (found := faults(mistake, words, answer))
    ]
    assert not wrong, "\n".join(wrong)


EXTREMES = ("entmax(alpha=1e6)", "stieltjes(q=1e-6)", "stieltjes(q=1e6)", "length_scaled(m=1e37)")


@pytest.mark.parametrize("spec", full_except((*EXTREMES, "sink_softmax(sink=1e37)", "top_k"), EXTREMES[0]))
def test_the_largest_numbers_that_are_allowed_give_finite_weights_and_a_row_may_be_empty(spec: str):
    for size in (0, 3):
        weights = sj.normalizer(spec)(jnp.arange(float(size)))
        assert weights.shape == (size,)
        assert jnp.isfinite(weights).all()
