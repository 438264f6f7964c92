"""Bad arguments and bad options: one line with the value, the rule and the remedy, before anything is compiled."""

import dataclasses
import importlib
import inspect
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

import jax.numpy as jnp
import pytest

import softmax_jax as sj
from softmax_jax import theory
from softmax_jax.runtime.distributed import Cluster
from softmax_jax.training.config import Config
from tests.faults.bad_arguments import cases
from tests.faults.bad_input import ROOT
from tests.faults.bad_options import COMMANDS, GALLERY, NORMALIZERS, SHARPEST

SCRIPTS = ("train.py", "evaluate.py", "fit_temperature.py", "shootout.py", "report.py", "ablate.py")
BENCHMARKS = tuple(f"benchmarks.{name}" for name in ("all", "attention", "sparse", "table", "timing"))
MODULES = (NORMALIZERS, GALLERY, SHARPEST, *BENCHMARKS)
CONTESTS = ("benchmarks.seeds", "benchmarks.training", "benchmarks.evaluation")


def answers(what: str) -> list[dict[str, Any]]:
    """What a process without the checks of types that the tests put around every function answers to the table."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    # Settings of the devices that are given keep the scripts from making their own, which one process does once.
    environment = plain | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    command = [sys.executable, "-m", "tests.faults.bad_input", what]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def lacking(said: str, words: Sequence[str]) -> list[str]:
    return [f"does not say {word!r}" for word in words if word not in said]


def test_every_bad_argument_is_named_with_its_rule_and_remedy_before_anything_is_compiled():
    table, wrong = cases(), []
    found = answers("arguments")
    assert len(found) == len(table) > 150
    for case, answer in zip(table, found):
        faults = lacking(answer["said"], case.words)
        faults += [answer["error"]] * (answer["error"] not in ("ValueError", "TypeError"))
        faults += ["more than one line"] * ("\n" in answer["said"])
        faults += [f"compiled {answer['compiled']} programs"] * bool(answer["compiled"])
        if faults:
            wrong.append(f"{case.of}: {'; '.join(faults)}: {answer['said']}")
    assert not wrong, "\n".join(wrong)


def test_every_bad_option_ends_in_one_line_and_status_2_and_leaves_nothing_behind():
    wrong = []
    found = answers("options")
    assert len(found) == len(COMMANDS) > 150
    for command, answer in zip(COMMANDS, found):
        faults = lacking(answer["said"], command.words)
        faults += [f"ends in {answer['status']}"] * (answer["status"] != 2)
        faults += ["not one line"] * (answer["said"].count("\n") != 1)
        faults += [f"leaves {answer['left']}"] * bool(answer["left"])
        faults += [f"compiled {answer['compiled']} programs"] * bool(answer["compiled"])
        if faults:
            wrong.append(f"{command.script} {' '.join(command.arguments)}: {'; '.join(faults)}: {answer['said']}")
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


@pytest.mark.parametrize("spec", EXTREMES)
def test_the_largest_numbers_that_are_allowed_give_finite_weights(spec: str):
    assert jnp.isfinite(sj.normalizer(spec)(jnp.arange(3.0))).all()


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and class that takes arguments of its own."""
    own = {name: of for name, of in vars(theory).items() if getattr(of, "__module__", "") == theory.__name__}
    theory_functions = {name: of for name, of in own.items() if inspect.isfunction(of) and name[0] != "_"}
    of_package = {name: getattr(sj, name) for name in sj.__all__}
    yield from (of_package | theory_functions | {"Config": Config, "Cluster": Cluster}).items()


UNCHECKED = {
    *("METHODS", "Block", "Scale"),  # a mapping, a tuple and a protocol, that check nothing
}
ANY_VALUE = {
    "show.value",  # whatever it is, it can be shown
    "stream.axis_name",  # JAX knows the axes of the mesh that it runs under
    "normalizer.numbers",
    *("LinenAttention.parent", "LinenAttention.name"),  # Flax's own
}


def test_every_argument_of_every_public_function_is_in_the_table():
    tried = {case.of for case in cases()}
    missing = []
    for name, of in public():
        if name not in UNCHECKED:
            # The class of a module of NNX takes anything, its own initialization does not.
            parameters = (
                [*inspect.signature(of.__init__).parameters][1:]
                if isinstance(of, type)
                else inspect.signature(of).parameters
            )
            missing += [f"{name}.{own}" for own in parameters if f"{name}.{own}" not in tried | ANY_VALUE]
    assert not missing


def options_of(script: str) -> Iterator[str]:
    """The options of a script, those of the settings that it takes over too."""
    module = f"{script}.__main__" if script == NORMALIZERS else script
    names = runpy.run_path(str(ROOT / script)) if script in SCRIPTS else vars(importlib.import_module(module))
    hints = get_type_hints(names["Arguments"])
    for field in dataclasses.fields(names["Arguments"]):
        kind = hints[field.name]
        inner = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else (field,)
        yield from (f"--{own.name.replace('_', '-')}" for own in inner)


POSITIONAL = {"--runs", "--files"}


@pytest.mark.parametrize("script", [*SCRIPTS, *MODULES])
def test_every_option_of_every_script_is_in_the_table(script: str):
    alike = CONTESTS if script == "benchmarks.timing" else (script,)
    tried = {word.split("=")[0] for command in COMMANDS if command.script in alike for word in command.arguments}
    missing = [option for option in options_of(script) if option not in tried | POSITIONAL]
    assert not missing


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train.py", "quick", "--width", "1000000"], "--width is 1000000; it must be from 1 to 16384"),
        (["report.py", "nowhere"], "nowhere holds no run"),
        (["-m", "softmax_jax.normalizers", "--markdwn"], "did you mean --markdown?"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_process_ends_in_one_line_and_leaves_nothing_behind(command: list[str], words: str, tmp_path: Any):
    script = [str(ROOT / command[0]), *command[1:]] if command[0].endswith(".py") else command
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    del environment["XLA_FLAGS"]
    done = subprocess.run([sys.executable, *script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
