"""The process of a command: its devices, its compiled programs, and how it ends."""

import os
import re
import subprocess
import sys

import jax
import pytest

from softmax_jax.experiment.commands import evaluate, process, report, train
from softmax_jax.experiment.commands.process import CompiledPrograms, one_line_errors
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.refusal import NotFiniteError, Refusal, WrongType

FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count")
"""How many devices and threads there are; nothing that changes what the compiler makes of a program."""
AS_A_COMMAND = """
import os, jax
from softmax_jax.experiment.commands.process import one_device_per_core
one_device_per_core()
jax.jit(lambda x: x)(1.0)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.full
def test_commands_and_tests_compile_as_users_programs_do():
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run([sys.executable, "-c", AS_A_COMMAND], env=environment, capture_output=True, text=True)
    for given in (ran.stdout, os.environ["XLA_FLAGS"]):
        assert set() < {flag.split("=")[0] for flag in given.split()} <= set(FLAGS)


def test_a_device_that_is_not_there_is_said_in_one_line_and_what_is_printed_is_no_markup(monkeypatch, capsys):
    plain_console().print("[red]a[/b] :x:")
    assert capsys.readouterr().out == "[red]a[/b] :x:\n"

    def devices():
        raise RuntimeError("Unable to initialize backend")

    monkeypatch.setattr(process.jax, "devices", devices)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        devices()
    assert ended.value.code == 2
    assert re.fullmatch(r"error: JAX_PLATFORMS is '\w+', and JAX finds no such device .*\n", capsys.readouterr().err)


DEFECTS = (ValueError, OSError, TypeError, RuntimeError)
PARTS = [(evaluate, "load_runs", ()), (report, "sections_of", ()), (train, "train", ("quick", "--workdir", "run"))]


@pytest.mark.parametrize("kind", DEFECTS)
@pytest.mark.parametrize(("module", "part", "words"), PARTS)
def test_a_defect_keeps_its_traceback_through_every_command(kind, module, part, words, monkeypatch, tmp_path, capsys):
    def boom(*arguments, **options):
        raise kind("boom")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, part, boom)
    monkeypatch.setattr(sys, "argv", ["command.py", *words])
    with pytest.raises(kind, match="boom") as raised:
        module.main()
    names = [entry.name for entry in raised.traceback]
    assert (names[-1], "command" in names) == ("boom", False)  # the context of a command is not on the stack
    assert "error:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Refusal("--sets is 0:\nname more"), 2, "--sets is 0: name more"),
        (WrongType("s is 'x'"), 2, "s is 'x'"),
        (NotFiniteError("the loss is not finite"), 1, "the loss is not finite"),
        (MemoryError("of 2 TB"), 2, "this takes more memory than there is (of 2 TB): ask for fewer sets"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "this takes more memory than there is"),
    ],
)
def test_what_no_defect_is_ends_in_one_line(error, status, said, capsys):
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    printed = capsys.readouterr().err
    assert (ended.value.code, printed.count("\n")) == (status, 1)
    assert printed.startswith(f"error: {said}")


def test_the_cache_is_jax_own_or_in_the_users_cache_directory(tmp_path, monkeypatch):
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    before = {name: jax.config.values[name] for name in names}
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        jax.config.update("jax_compilation_cache_dir", None)
        CompiledPrograms(no_compilation_cache=True).keep()
        assert [jax.config.values[name] for name in names] == [str(tmp_path / "softmax_jax"), False]
        jax.config.update("jax_compilation_cache_dir", "of-jax")
        CompiledPrograms().keep()
        assert jax.config.values["jax_compilation_cache_dir"] == "of-jax"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
