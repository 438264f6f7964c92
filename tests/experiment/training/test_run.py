import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import run as run_module
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.run import Interrupted, run
from softmax_jax.experiment.training.run_directory import (
    RunDirectory,
    first_state,
    load_checkpoint,
    read_config,
    started,
)
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.refusal import NotFiniteError

ROOT = Path(__file__).parents[3]
SMALL = Config(
    MaxRetrieval(sets=8, min_items=2, max_items=3, width=8), steps=50, seeds=2, chunk=10, chunks_per_checkpoint=2
)


def quiet():
    return Console(file=io.StringIO(), force_terminal=False)


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def identical(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """One program for all runs of the same settings, which would compile it anew."""
    programs = {}

    def cached(config, state, steps, compile_chunk=run_module.compiled_chunk):
        key = json.dumps(settings_of(changed(config, steps=1))), steps
        if key not in programs:
            programs[key] = compile_chunk(config, state, steps)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "compiled_chunk", cached)
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "whole"
    run(SMALL, str(path), quiet())
    return path


def interrupt_at(monkeypatch, step):
    """Sends this process a Ctrl-C when the chunk that ends at `step` has been logged."""
    log = RunDirectory.log

    def log_and_interrupt(directory, lines):
        log(directory, lines)
        if lines[0]["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_interrupt)


def test_a_run_leaves_settings_versions_metrics_and_parameters(uninterrupted):
    assert read_config(str(uninterrupted)) == SMALL
    assert {"jax", "flax", "python"} <= json.loads((uninterrupted / "versions.json").read_text()).keys()
    lines = metrics(uninterrupted)
    assert [(line["step"], line["seed"]) for line in lines] == [
        (step, seed) for step in range(10, 60, 10) for seed in (0, 1)
    ]
    assert set(lines[0]) == {"step", "seed", "loss", "cross_entropy", "accuracy", "steps_per_second"}
    config, parameters = load_checkpoint(uninterrupted)
    assert config == SMALL
    assert parameters["item_out"]["kernel"].shape == (2, 8, 8)


@pytest.mark.parametrize("step", [10, pytest.param(30, marks=pytest.mark.full)])
def test_an_interrupted_run_continues_to_the_same_bits(uninterrupted, tmp_path, monkeypatch, capsys, step):
    interrupt_at(monkeypatch, step)
    with pytest.raises(Interrupted, match=f"step {step}"):
        run(SMALL, tmp_path, quiet())
    assert load_checkpoint(str(tmp_path))[1]["read_out"]["bias"].shape == (2, 10)
    assert capsys.readouterr().err.endswith(f"is not trained to its end: this is step {step} of 50\n")
    monkeypatch.undo()
    run(SMALL, tmp_path, quiet())
    assert identical(load_checkpoint(tmp_path)[1], load_checkpoint(uninterrupted)[1])
    drop = ("steps_per_second",)
    ours, theirs = metrics(tmp_path), metrics(uninterrupted)
    assert [{k: v for k, v in line.items() if k not in drop} for line in ours] == [
        {k: v for k, v in line.items() if k not in drop} for line in theirs
    ]


def test_a_finished_run_stays_as_it_is(uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes(), load_checkpoint(uninterrupted)[1]
    (uninterrupted / "versions.json").write_text('{"jax": "an earlier one"}')
    run(SMALL, uninterrupted, quiet())
    assert json.loads((uninterrupted / "versions.json").read_text()) == {"jax": "an earlier one"}
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before[0]
    assert identical(load_checkpoint(uninterrupted)[1], before[1])


def test_a_line_of_metrics_that_a_crash_cut_short_is_dropped(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[0][:-5])
    directory = RunDirectory(tmp_path / "run", SMALL)
    step, _ = directory.resume()
    directory.close()
    assert step == 50
    assert path.read_text() == whole


@pytest.mark.full
def test_a_finished_run_goes_on_to_more_steps_as_if_they_had_been_meant(uninterrupted, tmp_path, monkeypatch, capsys):
    run(changed(SMALL, steps=30), tmp_path, quiet())
    assert read_config(tmp_path / "parameters").steps == 30
    interrupt_at(monkeypatch, 40)
    with pytest.raises(Interrupted, match="step 40"):
        run(SMALL, tmp_path, quiet())
    assert load_checkpoint(tmp_path)[0] == SMALL
    assert "this is step 40 of 50" in capsys.readouterr().err
    monkeypatch.undo()
    run(SMALL, tmp_path, quiet())
    assert identical(load_checkpoint(tmp_path)[1], load_checkpoint(uninterrupted)[1])
    assert [line["step"] for line in metrics(tmp_path)] == [line["step"] for line in metrics(uninterrupted)]
    with pytest.raises(ValueError, match=r"steps=50, not 20\. Choose another"):
        run(changed(SMALL, steps=20), tmp_path, quiet())


@pytest.mark.full
def test_more_steps_are_refused_where_they_would_have_changed_the_first(tmp_path):
    falling = changed(SMALL, steps=10, schedule="cosine_decay_schedule")
    run(falling, tmp_path, quiet())
    with pytest.raises(ValueError, match=r"learning rates would have been others \(cosine_decay_schedule\)"):
        run(changed(falling, steps=20), tmp_path, quiet())
    assert read_config(tmp_path).steps == 10


@pytest.mark.full
def test_a_finished_run_without_its_checkpoints_stays_as_it_is(tmp_path):
    run(changed(SMALL, steps=10), tmp_path, quiet())
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="finished run without its checkpoints"):
        run(SMALL, tmp_path, quiet())
    assert load_checkpoint(tmp_path)[0].steps == 10


SLOW = """
import sys, time
from pathlib import Path
from rich.console import Console
from softmax_jax.experiment.training import run as run_module
from tests.experiment.training.test_run import SMALL

def slow(config, state, steps, compiled=run_module.compiled_chunk):
    program = compiled(config, state, steps)
    def chunk(state, step):
        if step == 20:
            print("third chunk", flush=True)
            time.sleep(60)
        return program(state, step)
    return chunk

run_module.compiled_chunk = slow
run_module.run(SMALL, Path(sys.argv[1]), Console())
"""


@pytest.mark.full
def test_a_second_ctrl_c_stops_at_once_and_the_run_continues(tmp_path, uninterrupted):
    """Both come while the third chunk is computed."""
    command = [sys.executable, "-c", SLOW, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        next(line for line in process.stdout if "third chunk" in line)
        process.send_signal(signal.SIGINT)
        next(line for line in process.stdout if "Ctrl-C again to stop now" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    run(SMALL, tmp_path, quiet())
    assert identical(load_checkpoint(tmp_path)[1], load_checkpoint(uninterrupted)[1])


def starting_from(path, **settings):
    return changed(SMALL, start_from=str(path), **settings)


def test_a_run_from_the_models_of_a_third_leaves_out_the_batches_of_both_before(tmp_path):
    second = changed(SMALL, first_batch=70)
    (tmp_path / "config.json").write_text(json.dumps(settings_of(second)))
    assert started(starting_from(tmp_path)).first_batch == 70 + second.steps
    assert started(starting_from(tmp_path, first_batch=9)).first_batch == 9


def test_a_run_continued_within_a_chunk_ends_that_chunk_first(tmp_path, monkeypatch):
    """So that its lines are those of a run that was never stopped."""
    done = run_module.Metrics(jnp.zeros(2), jnp.zeros(2), jnp.zeros(2), jnp.full(2, -1))
    state = run_module.TrainState((), (), jnp.arange(2))
    monkeypatch.setattr(run_module, "compiled_chunk", lambda *_: lambda state, step: (state, done))
    directory = RunDirectory(tmp_path / "run", SMALL)
    reached = [step for step, *_ in run_module._chunks(SMALL, directory, 25, state, quiet())]
    directory.close()
    assert reached == [30, 40, 50]


def test_a_run_from_the_models_of_another_takes_each_seed_from_its_own(uninterrupted):
    config = started(starting_from(uninterrupted, seeds=1, first_seed=1))
    own = jax.tree.map(lambda leaf: leaf[1:], load_checkpoint(uninterrupted)[1])
    assert identical(first_state(config).parameters, own)


@pytest.mark.full
def test_a_run_may_start_from_the_models_of_another(uninterrupted, tmp_path):
    config = starting_from(uninterrupted, steps=10, seeds=1, first_seed=1, normalizer="ssmax")
    state = run(config, tmp_path / "next", quiet())
    there, trained = load_checkpoint(uninterrupted)
    assert read_config(tmp_path / "next").first_batch == there.steps == 50
    one_more = chunk_trainer(changed(config, first_batch=50))
    parameters = jax.tree.map(lambda leaf: leaf[1:], trained)
    start = initial_state(config)
    fresh = start._replace(parameters=jax.tree.map(jnp.asarray, parameters))
    assert identical(one_more(fresh, 0, 10)[0].parameters, state.parameters)
    # Not the batches that the first run began with.
    again, _ = chunk_trainer(config)(fresh, 0, 10)
    assert not identical(again.parameters, state.parameters)
    # It is continued like any other.
    assert identical(run(config, tmp_path / "next", quiet()).parameters, state.parameters)


@pytest.mark.full
def test_numbers_that_only_the_new_normalizer_learns_start_as_they_always_do(tmp_path):
    config = Config(Signal(length=6, hidden=8, heads=2, layers=1, sets=4), steps=2, chunk=2)
    first = run(config, tmp_path / "first", quiet()).parameters
    config = changed(config, start_from=str(tmp_path / "first"), normalizer="ssmax", steps=1)
    start = first_state(started(config)).parameters
    numbers = start["blocks"][0].pop("attention")
    np.testing.assert_allclose(numbers["s"], 1 / np.log(16), rtol=1e-6)
    first["blocks"][0].pop("attention", None)
    assert identical(start, first)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"first_seed": 1}, r"has no seed 2: its seeds are 0 to 1; choose --first-seed and --seeds among them"),
        ({"width": 16}, r"whose models have other parameters: give this run the task and the sizes"),
        ({"start_from": "nowhere"}, "nowhere"),
    ],
)
def test_a_run_that_does_not_fit_is_no_start(uninterrupted, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        run(changed(starting_from(uninterrupted), **settings), tmp_path / "next", quiet())
    assert not (tmp_path / "next").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    compiled_chunk = run_module.compiled_chunk

    def spoiled(config, state, steps):
        program = compiled_chunk(config, state, steps)

        def spoil(state, step):
            if step == 30:
                state = state._replace(parameters=jax.tree.map(lambda leaf: leaf * np.float32("nan"), state.parameters))
            return program(state, step)

        return spoil

    monkeypatch.setattr(run_module, "compiled_chunk", spoiled)
    with pytest.raises(NotFiniteError, match="seed 0 is not finite at step 30"):
        run(SMALL, tmp_path, quiet())
    assert [line["step"] for line in metrics(tmp_path)][-1] == 30
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_checkpoint(tmp_path)[1]))


def test_directories_without_a_run_or_of_other_settings_are_refused(uninterrupted, tmp_path):
    for content, words in (
        (None, r"no config\.json"),
        (json.dumps(settings_of(SMALL)), "no checkpoint yet"),
        ("{", r"config\.json cannot be read as JSON"),
    ):
        if content:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=words):
            load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"width=8, not 16\. Choose another directory"):
        run(changed(SMALL, width=16), uninterrupted, quiet())
    assert read_config(uninterrupted) == SMALL
    copy = tmp_path / "copy"
    shutil.copytree(uninterrupted, copy)
    (copy / "config.json").write_text(json.dumps(settings_of(changed(SMALL, width=4))))
    with pytest.raises(ValueError, match=r"width=8, not 4"):
        load_checkpoint(copy)


def test_a_second_run_in_a_directory_is_refused_until_the_first_ends(tmp_path):
    first = RunDirectory(tmp_path / "run", SMALL)
    with pytest.raises(ValueError, match=r"run is in use by another run: let it end, or choose another --workdir"):
        RunDirectory(tmp_path / "run", SMALL)
    first.close()
    RunDirectory(tmp_path / "run", SMALL).close()


@pytest.mark.parametrize("name", ["a[/b]", "a*", "a?"])
def test_a_directory_that_orbax_takes_for_a_pattern_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"has one of \* \? \[ in its name: choose another --workdir$"):
        RunDirectory(tmp_path / name, SMALL)
    assert not list(tmp_path.iterdir())
