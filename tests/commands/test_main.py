import subprocess
import sys
from importlib import import_module

import pytest

from softmax_jax import configs, tasks
from softmax_jax.commands import __main__ as program


def run(*words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/softmax-jax", *words])
    program.main()


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_every_command_is_listed_with_what_it_does(words, monkeypatch, capsys):
    run(*words, monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    for command in program.COMMANDS:
        summary = import_module(f"softmax_jax.commands.{command}").__doc__ or ""
        assert f"  {command:<10}{summary}\n" in listed


def test_another_name_is_refused_in_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run("trian", monkeypatch=monkeypatch)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: the first argument is trian: did you mean 'train'? it must be")


def test_a_command_gets_the_other_words_and_says_its_own_name(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run("train", "papr", monkeypatch=monkeypatch)
    assert "the first argument is papr: did you mean 'paper'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("evaluate", "--help", monkeypatch=monkeypatch)
    first, _, usage = capsys.readouterr().out.split("\n", 2)
    assert first.startswith("example: softmax-jax evaluate --normalizers softmax ")
    assert usage.startswith("usage: softmax-jax evaluate [-h]")


def test_a_preset_is_listed_only_where_its_task_stands(tmp_path, monkeypatch):
    everywhere = configs.preset_summaries()
    assert list(everywhere) == list(configs.PRESETS)
    monkeypatch.setattr(tasks, "_ROOT", tmp_path)  # as in a wheel
    for name in ("clrs_text", "clrs_text_100m"):
        monkeypatch.delitem(sys.modules, f"softmax_jax.configs.{name}", raising=False)
    assert everywhere.keys() - configs.preset_summaries().keys() == {"clrs_text", "clrs_text_100m"}


def test_without_the_extra_it_says_what_to_install():
    code = "import sys; sys.modules['tyro'] = None; sys.argv = ['softmax-jax', 'train']"
    code += "; from softmax_jax.commands.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "error: softmax-jax train needs tyro, which is not installed: pip install 'softmax-jax[experiment]'\n"
    )
