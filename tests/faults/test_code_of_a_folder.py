"""A folder that a command runs in, such as one with a run that was handed over, runs none of its code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softmax_jax.normalizers.user_modules import UserModules
from tests.tiers import full_except

ROOT = Path(__file__).parents[2]
SCRIPT = """
import shlex, sys
from pathlib import Path

HERE, BESIDE = Path.cwd(), Path(__file__).parent
CANARY = 'from pathlib import Path; Path({sung!r}).touch(); raise ModuleNotFoundError({name!r}, name={name!r})'

class Recorder:
    "Puts a canary into the folder for every module that is sought, a moment before it is."

    def find_spec(self, name, path=None, target=None):
        canary = HERE / f"{name}.py"
        if path is None and name.isidentifier() and not canary.exists():
            canary.write_text(CANARY.format(sung=str(BESIDE / "sung" / name), name=name))
            sys.path_importer_cache.pop(str(HERE), None)  # which has listed the folder before

(BESIDE / "sung").mkdir()
sys.meta_path.insert(0, Recorder())
from softmax_jax.experiment.commands.__main__ import main
before = list(sys.path)
for line in sys.argv[1:]:
    sys.argv = shlex.split(line)
    main()
assert sys.path == before
"""
"""What stands in a console script, with the recorder."""
TRAIN = "softmax-jax train quick --steps 10 --chunk 5 --batch 4 --min-items 2 --max-items 3 --width 8"
EVALUATE = "softmax-jax evaluate --checkpoint runs/quick --lengths 4 --sets 8 --normalizers softmax"


@pytest.fixture
def folder(tmp_path):
    """An empty folder to run in, beside that of the script."""
    for name in ("folder", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "softmax-jax").write_text(SCRIPT)
    return tmp_path / "folder"


def run(place, *command, path: object = ROOT):
    """What Python says of a command in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(path)}
    return subprocess.run((sys.executable, *command), cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.full
def test_no_command_runs_code_of_the_folder_that_it_runs_in(folder):
    """One after the other, in one process, as most of the time goes into imports."""
    done = run(folder, folder.parent / "bin" / "softmax-jax", TRAIN, EVALUATE)
    assert [path.name for path in (folder.parent / "bin" / "sung").iterdir()] == []
    assert done.returncode == 0, done.stderr
    assert {"jax", "numpy", "tyro", "rich"} < {path.stem for path in folder.glob("*.py")}  # each had its canary


MINE = """
import beside
import jsonschema  # which is installed, and seeks modules that may not be
def mine(logits, axis=-1, where=None):
    import late
    return beside.scaled(late.squared(logits))
"""
BESIDE = {
    "beside": "from importlib import import_module\nscaled = import_module('deeper').double",
    "deeper": "def double(x): return 2 * x",
    "late": "import numpy, even_later\ndef squared(x): return x**2",
    "even_later": "",
    "lonely": "",
}
USE = """
import os, sys, tempfile
import numpy as np, softmax_jax as sj
before = list(sys.path)
mine = sj.normalizer(sys.argv[1])
os.chdir(tempfile.gettempdir())
np.testing.assert_array_equal(mine(np.float32([1, 3])), [2, 18])
assert sys.path == before
try:
    import lonely
except ModuleNotFoundError:
    print("not found")
"""


@pytest.mark.parametrize(
    "spec", full_except(["own:mine", "package.own:mine", "package.sub.own:mine"], "package.sub.own:mine")
)
def test_a_typed_module_finds_those_beside_it_now_and_later_and_nobody_else_does(spec, tmp_path):
    module = spec.partition(":")[0].replace(".", "/")
    (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
    files = BESIDE | dict.fromkeys(("fqdn", "idna", "webcolors"), "raise AssertionError('jsonschema found it')")
    for name, text in (files | {module: MINE}).items():
        (tmp_path / f"{name}.py").write_text(text)
    done = run(tmp_path, "-P", "-c", USE, spec)
    assert (done.stdout, done.stderr) == ("not found\n", "")


def test_a_typed_name_is_sought_in_the_folder_only_while_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    modules = UserModules()
    with pytest.raises(ModuleNotFoundError):
        modules.import_typed("not_there_yet")
    (tmp_path / "not_there_yet.py").touch()
    assert modules.find_spec("not_there_yet") is None


@pytest.mark.full
def test_python_m_seeks_nothing_in_the_folder_once_a_command_runs(folder):
    """Before, Python itself seeks there; of the package of the repository it is the place."""
    (folder / "tyro.py").write_text("raise AssertionError('it runs')")
    for place, words in {folder: ("vectors", "--help"), ROOT: ("train", "quick", "--help")}.items():
        path = ROOT if place == folder else ""
        done = run(place, "-m", "softmax_jax.experiment.commands", *words, path=path)
        assert done.stdout.startswith(f"example: softmax-jax {words[0]} "), done.stderr
