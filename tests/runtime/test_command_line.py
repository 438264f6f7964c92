import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from softmax_jax.runtime import command_line
from softmax_jax.runtime.command_line import one_line_errors, plain_console, results_of

FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count")
"""How many devices and threads there are; nothing that changes what the compiler makes of a program."""
AS_A_COMMAND = """
import os
import re
import jax
from softmax_jax.runtime.command_line import one_device_per_core
one_device_per_core()
jax.jit(lambda x: x)(1.0)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.full
@pytest.mark.parametrize("flags", [None, "as in the tests"])
def test_commands_and_tests_compile_as_users_programs_do(flags):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" or flags}
    ran = subprocess.run([sys.executable, "-c", AS_A_COMMAND], env=environment, capture_output=True, text=True)
    given = [flag.split("=")[0] for flag in ran.stdout.split()]
    assert given
    assert set(given) <= set(FLAGS)


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


def test_what_is_printed_is_no_markup(capsys):
    plain_console().print("[red]a[/b] :x:")
    assert capsys.readouterr().out == "[red]a[/b] :x:\n"


def test_a_device_that_is_not_there_is_said_in_one_line(monkeypatch, capsys):
    def devices():
        raise RuntimeError("Unable to initialize backend")

    monkeypatch.setattr(command_line.jax, "devices", devices)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        devices()
    assert ended.value.code == 2
    assert re.fullmatch(
        r"error: JAX_PLATFORMS is '\w+', and JAX finds no such device here: .*\n", capsys.readouterr().err
    )
