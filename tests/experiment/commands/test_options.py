import dataclasses
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import polars as pl
import pytest

from softmax_jax.experiment.commands import evaluate, report, train
from softmax_jax.experiment.commands.output import print_any_letter, program, results_of
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.commands.process import CompiledPrograms, one_line_errors
from softmax_jax.experiment.measures.evaluation import named_normalizers
from softmax_jax.experiment.report.findings import Evaluated
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.files import read_bytes
from softmax_jax.refusal import NotFiniteError, Refusal, WrongType

FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count")
"""How many devices and threads there are; nothing that changes what the compiler makes of a program."""
AS_A_COMMAND = """
import os, jax
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
        read_bytes(Path("not_there.txt"))
    said = capsys.readouterr().err
    assert said == "error: not_there.txt cannot be read: No such file or directory; name another\n"


DEFECTS = (ValueError, OSError, KeyError, TypeError, ZeroDivisionError, FloatingPointError, RuntimeError, UnicodeError)


@pytest.mark.parametrize("kind", DEFECTS)
@pytest.mark.parametrize(
    ("module", "part", "words"),
    [(evaluate, "load_runs", ()), (report, "sections_of", ()), (train, "run", ("quick", "--workdir", "run"))],
)
def test_a_defect_keeps_its_traceback_through_every_command(kind, module, part, words, monkeypatch, tmp_path, capsys):
    def boom(*arguments, **options):
        raise kind("boom")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, part, boom)
    monkeypatch.setattr(sys, "argv", ["command.py", *words])
    with pytest.raises(kind, match="boom") as raised:
        module.main()
    assert [entry.name for entry in raised.traceback][-1] == "boom"
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
    assert ended.value.code == status
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {said}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("name", ["first run", "läufe", "it's", "$HOME", "plain"])
def test_the_commands_that_are_printed_name_their_path_as_a_shell_reads_it(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "run", lambda *arguments: None)
    monkeypatch.setattr(sys, "argv", ["train.py", "quick", "--normalizer", "math:tanh", "--workdir", f"my runs/{name}"])
    monkeypatch.setattr(train, "build_model", lambda *arguments: None)
    train.main()
    trained = capsys.readouterr().out.partition("evaluate with: ")[2]
    assert shlex.split(trained) == ["python", "evaluate.py", "--checkpoint", f"my runs/{name}", "--trust-code"]
    run = Evaluated("x", Sort(), ("softmax",), [], pl.DataFrame())
    following = evaluate.next_step([Path(f"my runs/{name}"), tmp_path / name], [run])
    assert shlex.split(following, comments=True) == ["python", "report.py", f"my runs/{name}", name]
    with pytest.raises(Refusal, match="there is no such fit") as refused:
        named_normalizers(["adaptive_refit"], tmp_path / name, {})
    fit = shlex.split(str(refused.value).partition(": run ")[2])
    assert fit[1:] == ["--checkpoint", str(tmp_path / name), "--output", str(tmp_path)]


def test_a_script_in_another_place_names_the_one_beside_it(tmp_path, monkeypatch):
    place = tmp_path / "my code"
    place.mkdir()
    (place / "fit_temperature.py").touch()
    monkeypatch.setattr(sys, "argv", [str(place / "train.py")])
    assert shlex.split(program("fit")) == ["python", str(place / "fit_temperature.py")]
    assert program("evaluate") == "python evaluate.py"


@pytest.mark.parametrize(
    ("coding", "wanted"),
    [("ascii", "±β läufe".encode()), ("latin-1", b"\xb1? l\xe4ufe"), ("utf-8", "±β läufe".encode())],
)
def test_any_letter_can_be_printed_in_any_locale(coding, wanted, monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, coding, "strict"))
    print_any_letter()
    print("±β läufe", end="", flush=True)
    assert printed.getvalue() == wanted


def test_a_place_that_results_cannot_go_to_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/evaluate").touch()
    with pytest.raises(Refusal, match="--output is results/evaluate: it must be a directory to write to"):
        evaluate.Arguments()
    with pytest.raises(Refusal, match=r"results/evaluate/.* cannot be written"), results_of("evaluate", None):
        raise AssertionError("unreachable")


AGAIN = """
import jax, sys
from pathlib import Path
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
