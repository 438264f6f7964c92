"""What people install: a wheel, unpacked where nothing of the checkout is."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELP = """
import contextlib, io, sys
from importlib.metadata import entry_points
from softmax_jax.experiment.commands.__main__ import COMMANDS
from softmax_jax.experiment.configs import PRESETS
(script,) = entry_points(group="console_scripts", name="softmax-jax")
for words in [], *([name] for name in COMMANDS), *(["train", preset] for preset in PRESETS):
    sys.argv, said = ["softmax-jax", *words, "--help"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        script.load()()
    print(words[-1:], said.getvalue().split("\\n")[0])
"""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The directory with the package of a wheel."""
    path = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(path)
    return path


@pytest.fixture
def run(installed, tmp_path):
    """Runs a Python on the installed package, somewhere else, and returns what it said."""

    def run(*words):
        one_device = (
            "--xla_cpu_multi_thread_eigen=false"  # or each command would make devices, which a process does once
        )
        environment = {**os.environ, "PYTHONPATH": str(installed), "XLA_FLAGS": one_device}
        command = (sys.executable, *map(str, words))
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_alone_with_all_its_files(installed):
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"softmax_jax"}
    files = [path for path in (ROOT / "softmax_jax").rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    assert [path for path in files if not (installed / path.relative_to(ROOT)).is_file()] == []


@pytest.mark.full
def test_every_command_and_every_preset_has_its_help(run):
    said = dict(line.split("] ", 1) for line in run("-c", HELP).splitlines())
    presets = {f"['{path.stem.removesuffix('_task')}'" for path in (ROOT / "configs").glob("[!_]*.py")}
    assert len(presets) > 10
    assert presets < set(said)
    for words, line in said.items():
        assert line.startswith(("example: softmax-jax", "usage: softmax-jax COMMAND")), words
    listed = run("-m", "softmax_jax.experiment.commands", "train", "--help")
    assert "  transformer_max_retrieval" in listed
    assert "clrs_text" not in listed
