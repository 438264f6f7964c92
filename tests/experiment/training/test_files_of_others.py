"""A file that somebody else wrote names no code that is run."""

import json
import re
import sys

import pytest

from softmax_jax import temperature
from softmax_jax.experiment.commands import evaluate, fit, report, train
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.checkpoint import sign
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.run_directory import Chunk, RunDirectory, load_checkpoint
from softmax_jax.normalizers import registry, user_modules
from softmax_jax.normalizers.fit_file import read_fit, signed

TEXT = "canary:relu(power=2)"
CONFIG = Config(MaxRetrieval(batch=2, min_items=2, max_items=2, width=2), steps=1)
CANARY = """
import pathlib
pathlib.Path(__file__).with_name("sung").touch()
import jax.numpy as jnp
def relu(logits, axis=-1, where=None, *, power=1):
    return jnp.maximum(logits if where is None else jnp.where(where, logits, 0), 0) ** power
"""


@pytest.fixture(scope="module")
def built():
    run = build_run(CONFIG)
    return run, run.initial_state()


@pytest.fixture
def run(tmp_path, built):
    """A finished run."""
    directory = RunDirectory(built[0], tmp_path / "run")
    directory.record(lambda step, state: iter([Chunk(1, built[1], [{"step": 1, "seed": 0}])]))
    return directory.path


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module that makes this file when it is imported; nobody has typed its name yet."""
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(user_modules, "_trusted", set())
    yield tmp_path / "sung"
    sys.modules.pop("canary", None)


@pytest.fixture
def foreign(run, canary):
    """The run, with the text in every file that holds text, and sums that fit."""
    settings = settings_of(changed(CONFIG, normalizer=TEXT))
    for name in ("config.json", "versions.json"):
        (run / name).write_text(json.dumps(settings))
    for checkpoint in (run / "parameters", run / "checkpoints" / "1"):
        sign(checkpoint, settings)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "seed": 0, "normalizer": TEXT}) + "\n")
    return run


COMMANDS = {
    "evaluate": (evaluate, "--checkpoint"),
    "fit": (fit, "--checkpoint"),
    "report": (report,),
    "start": (train, "quick", "--width", "2", "--workdir", "new", "--start-from"),
    "resume": (train, "quick", "--width", "2", "--workdir"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_that_names_a_module_is_refused_unread_by_every_command(
    name, foreign, canary, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    module, *words = COMMANDS[name]
    monkeypatch.setattr(sys, "argv", [name, *words, str(foreign)])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    said = (
        r"error: .*config\.json names 'canary:relu\(power=2\)', and importing canary would run its code.*--trust-code"
    )
    assert re.fullmatch(rf"{said}.*\n", capsys.readouterr().err)
    assert not canary.exists()


@pytest.mark.parametrize(
    "trust", [lambda: user_modules.trust(TEXT), lambda: user_modules.trust(user_modules.ANY), None]
)
def test_what_somebody_typed_or_code_names_is_imported(trust, foreign, canary):
    user_modules.trust("canary:relu")  # another text of the same module, which is not enough
    with pytest.raises(ValueError, match="importing canary would run"):
        load_checkpoint(foreign)
    (trust or (lambda: registry.normalizer(TEXT)))()
    assert canary.exists() == (trust is None)
    config, _ = load_checkpoint(foreign)
    assert config.normalizer == TEXT
    RunDirectory(build_run(config), foreign).close()


def fit_of(**changes):
    content = dict.fromkeys(("criterion", "lengths", "seeds", "versions", "checkpoint_sha256"), TEXT)
    content |= {"coefficients": [1.0], "entropy_range": [0.0, 1.0]}
    return json.dumps(signed(content | changes))


def test_a_fit_names_no_code(tmp_path, canary):
    (tmp_path / "fit.json").write_text(fit_of())
    registry.normalizer(f"adaptive(fit={tmp_path / 'fit.json'})")
    with pytest.raises(ValueError, match="is no whole temperature fit"):
        temperature.TemperatureFit.load(tmp_path / "fit.json")
    assert not canary.exists()


@pytest.mark.parametrize("changes", [{"lengths": TEXT}, {"lengths": []}, {"band": {"low": [1.0], "high": [1.0, 2.0]}}])
def test_a_fit_whose_numbers_are_none_stops_a_report_before_it_measures(run, monkeypatch, changes):
    content = {"criterion": "bins", "coverage": {}, "border": {}, "versions": {}, "seeds": [0], "lengths": [2]}
    content |= dict.fromkeys(("intervals", "band", "r_squared"))
    content |= {"coefficients": [1.0], "entropy_range": [0.0, 1.0], "beta_at_ends": [1.0, 1.0]}
    content |= {"checkpoint_sha256": temperature.checkpoint_sha256(load_checkpoint(run)[1])}
    (run / "temperature.json").write_text(json.dumps(signed(content)))
    temperature.TemperatureFit.load(run / "temperature.json")
    (run / "temperature.json").write_text(json.dumps(signed(content | changes)))
    monkeypatch.setattr("softmax_jax.experiment.report.sections.measure", lambda *_: pytest.fail("it measures"))
    with pytest.raises(ValueError, match="is no whole temperature fit"):
        report.report(report.Arguments((run,), normalizers=("softmax",)))
    (run / "temperature.json").unlink()
    with pytest.raises(ValueError, match="absent does not exist"):  # every run is loaded before one is measured
        report.report(report.Arguments((run, run / "absent"), normalizers=("softmax",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coefficients": [0.0] * 12}, "coefficients has 12 numbers; it must have at most 11"),
        ({"entropy_range": [0.0] * 10**5}, "entropy_range has 100000 numbers"),
        ({"coefficients": ["x" * 10**5]}, r"coefficients is \['x+\.\.\.x+'\]; it must be a list of finite numbers"),
    ],
)
def test_a_fit_is_bounded_and_so_is_what_is_said_of_it(tmp_path, changes, message):
    (tmp_path / "fit.json").write_text(fit_of(**changes))
    with pytest.raises(ValueError, match=message) as error:
        read_fit(tmp_path / "fit.json")
    assert len(str(error.value)) < 400
