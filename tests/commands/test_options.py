import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from softmax_jax.commands import options
from softmax_jax.commands.options import CompiledPrograms, one_line_errors, parse, results_of
from softmax_jax.training.progress import plain_console

FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count")
"""How many devices and threads there are; nothing that changes what the compiler makes of a program."""
AS_A_COMMAND = """
import os, jax
from softmax_jax.commands.options import one_device_per_core
one_device_per_core()
jax.jit(lambda x: x)(1.0)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.full
@pytest.mark.parametrize("flags", [None, "as in the tests"])
def test_commands_and_tests_compile_as_users_programs_do(flags):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" or flags}
    ran = subprocess.run([sys.executable, "-c", AS_A_COMMAND], env=environment, capture_output=True, text=True)
    given = {flag.split("=")[0] for flag in ran.stdout.split()}
    assert given
    assert given <= set(FLAGS)


def test_results_never_go_over_others_and_the_newest_is_linked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    for number in range(2):  # in the same second, as far as they can
        with results_of("evaluate", None) as output:
            (output / "found").write_text(str(number))
        made.append(output)
        assert Path("results/evaluate/latest/found").read_text() == str(number)
    assert [(output / "found").read_text() for output in made] == ["0", "1"]
    assert all(re.fullmatch(r"results/evaluate/\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", str(output)) for output in made)
    with results_of("evaluate", Path("elsewhere")) as output:
        assert output == Path("elsewhere")
    assert Path("results/evaluate/latest").resolve() == made[1].resolve()


def test_a_failure_leaves_no_directory_of_results_and_no_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no run"), results_of("report", None):
        raise ValueError("no run")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(IsADirectoryError), results_of("report", None) as output:
        output.write_text("no file")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_said_in_one_line_and_what_is_printed_is_no_markup(monkeypatch, capsys):
    plain_console().print("[red]a[/b] :x:")
    assert capsys.readouterr().out == "[red]a[/b] :x:\n"

    def devices():
        raise RuntimeError("Unable to initialize backend")

    monkeypatch.setattr(options.jax, "devices", devices)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        devices()
    assert ended.value.code == 2
    assert re.fullmatch(
        r"error: JAX_PLATFORMS is '\w+', and JAX finds no such device here: .*\n", capsys.readouterr().err
    )


@dataclasses.dataclass(frozen=True)
class Arguments:
    output: Path = Path("out")
    steps: int = 3


def test_a_tilde_is_the_home_of_the_user_and_what_cannot_be_read_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse(Arguments, ["--output=~/x"]).output == Path("/home/somebody/x")
    assert parse(Arguments, ["--output=~"]).output == Path("/home/somebody")
    assert parse(Arguments, ["--output=a~/x"]).output == Path("a~/x")
    with pytest.raises(SystemExit):
        parse(Arguments, ["--steps", "x"])
    said = capsys.readouterr().err
    assert said == "error: --steps is 'x': it must be a whole number, written as in 128 (--help shows every option)\n"
    with pytest.raises(SystemExit), one_line_errors():
        Path("not_there.txt").read_bytes()
    said = capsys.readouterr().err
    assert said == "error: not_there.txt cannot be read or written (No such file or directory): name another\n"


AGAIN = """
import jax, sys
from pathlib import Path
from softmax_jax.commands.options import CompiledPrograms
CompiledPrograms(Path(sys.argv[1])).keep()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hit" in event else None)
print(float(jax.jit(lambda x: x * 3.0)(2.0)), len(hits) > 0)
"""


@pytest.mark.full
def test_compiled_programs_are_found_again_by_the_next_process(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    said = []
    for place in ("cache", "cache", "file/cache"):
        (tmp_path / "file").write_text("in the way")
        command = [sys.executable, "-c", AGAIN, tmp_path / place]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        said.append(ran.stdout)
    assert said == ["6.0 False\n", "6.0 True\n", "6.0 False\n"]


def test_the_cache_is_jax_own_or_in_the_users_cache_directory(tmp_path, monkeypatch):
    before = jax.config.values["jax_compilation_cache_dir"], jax.config.values["jax_enable_compilation_cache"]
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        jax.config.update("jax_compilation_cache_dir", None)
        CompiledPrograms(no_compilation_cache=True).keep()
        assert not jax.config.values["jax_enable_compilation_cache"]
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "softmax_jax")
        jax.config.update("jax_compilation_cache_dir", "of-jax")
        CompiledPrograms().keep()
        assert jax.config.values["jax_compilation_cache_dir"] == "of-jax"
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_enable_compilation_cache", before[1])
