"""Presets as the command line finds them, and a package without its extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from softmax_jax.experiment import configs
from softmax_jax.refusal import Refusal

ROOT = Path(__file__).parents[3]


def test_presets_are_the_files_of_one_folder_and_what_studies_add():
    files = {path.stem.removesuffix("_task") for path in (ROOT / "configs").glob("*.py")}
    assert set(configs.PRESETS) == files | {"clrs_text"}
    assert list(configs.preset_summaries()) == list(configs.PRESETS)
    assert all(configs.preset_summaries().values())


def test_a_preset_of_ones_own_is_a_file_or_an_object_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "own_presets.py").write_text(
        "from softmax_jax.experiment.training.config import Config\nCONFIG, LONG = Config(steps=7), Config(steps=70)\n"
    )
    monkeypatch.chdir(tmp_path)
    config = configs.load_preset("own_presets.py")
    assert (config.steps, configs.load_preset("own_presets.py") is config) == (7, True)
    assert configs.load_preset("own_presets:LONG").steps == 70


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.py", None, "which is no file"),
        ("broken.py", "1 / 0", "ZeroDivisionError"),
        ("empty.py", "", "must hold a softmax_jax.experiment.training.config.Config by the name CONFIG"),
        ("statistics.py", "", "statistics is the name of another module"),
    ],
)
def test_a_preset_of_ones_own_that_is_none_is_refused(name, text, said, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    for _ in range(2):  # what was refused leaves nothing behind
        with pytest.raises(Refusal, match=said):
            configs.load_preset(str(tmp_path / name))


COMMAND = "sys.argv = ['softmax-jax', 'train']; from softmax_jax.experiment.commands.__main__ import main; main()"
PAGE = "from softmax_jax.experiment.report.model_page import model_page"


@pytest.mark.parametrize(
    ("package", "code", "use"), [("tyro", COMMAND, "softmax-jax train"), ("altair", PAGE, "a chart or a page")]
)
def test_what_needs_a_package_says_what_to_install(package, code, use):
    code = f"import sys; sys.modules[{package!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1].partition(": ")[2]
    assert said == f"{use} needs {package}, which is not installed: pip install 'softmax-jax[experiment]'"
    assert done.returncode
