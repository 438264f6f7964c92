import contextlib
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import train as train_module
from softmax_jax.experiment.training.config import Config, changed, read_config, settings_of
from softmax_jax.experiment.training.run import build_run, resolve_start
from softmax_jax.experiment.training.run_directory import RunDirectory, first_state, load_checkpoint
from softmax_jax.experiment.training.train import Interrupted, train
from softmax_jax.refusal import NotFiniteError, Refusal

SMALL = Config(
    MaxRetrieval(batch=8, min_items=2, max_items=3, width=8), steps=50, seeds=2, chunk=10, chunks_per_checkpoint=2
)
RUN = build_run(SMALL)


def quiet():
    return Console(file=io.StringIO(), force_terminal=False)


def metrics(path):
    """Lines of metrics without the rate, which is the clock's."""
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "steps_per_second"} for line in lines]


def identical(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def check_it_is(uninterrupted, path):
    assert identical(load_checkpoint(path)[1], load_checkpoint(uninterrupted)[1])
    assert metrics(path) == metrics(uninterrupted)


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """One program for all runs of the same settings."""
    programs = {}

    def cached(run, state, steps, compile_chunk=train_module.compiled_chunk):
        key = json.dumps(settings_of(changed(run.config, steps=1))), steps
        if key not in programs:
            programs[key] = compile_chunk(run, state, steps)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "compiled_chunk", cached)
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "whole"
    train(SMALL, str(path), quiet())
    return path


def interrupt_at(monkeypatch, step):
    """Sends a Ctrl-C when the chunk that ends at `step` has been logged; returns the handlers of a second one."""
    log, following = RunDirectory.log, []

    def log_and_interrupt(directory, lines):
        log(directory, lines)
        if lines[0]["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)
            following.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setattr(RunDirectory, "log", log_and_interrupt)
    return following


def test_a_run_leaves_settings_versions_metrics_and_parameters(uninterrupted):
    assert {"jax", "flax", "python"} <= json.loads((uninterrupted / "versions.json").read_text()).keys()
    lines = metrics(uninterrupted)
    assert [(line["step"], line["seed"]) for line in lines] == [(n, s) for n in range(10, 60, 10) for s in (0, 1)]
    assert set(lines[0]) == {"step", "seed", "loss", "cross_entropy", "accuracy"}
    config, parameters = load_checkpoint(str(uninterrupted))
    assert (config, parameters["item_out"]["kernel"].shape) == (SMALL, (2, 8, 8))


@pytest.mark.full
def test_a_training_enters_its_directory_twice(tmp_path):
    """Once to open it, once to record what the training yields; what it calls of its own is no entry."""
    entries = []

    def count(frame, event, _):
        path, caller = frame.f_code.co_filename, frame.f_back
        if event == "call" and path.endswith("training/run_directory.py"):
            while "/softmax_jax/experiment/" not in caller.f_code.co_filename:  # a check of shapes, or a library
                caller = caller.f_back
            if caller.f_code.co_filename != path:
                entries.append(frame.f_code.co_qualname)

    sys.setprofile(count)
    try:
        train(SMALL, tmp_path, quiet())
    finally:
        sys.setprofile(None)
    assert entries == ["RunDirectory.__init__", "RunDirectory.record"]


def test_an_interrupted_run_continues_to_the_same_bits(uninterrupted, tmp_path, monkeypatch, capsys):
    before, following = signal.getsignal(signal.SIGINT), interrupt_at(monkeypatch, 30)
    with pytest.raises(Interrupted, match="step 30"):
        train(SMALL, tmp_path, quiet())
    assert following == [signal.SIG_DFL]  # a second Ctrl-C ends the process at once
    assert signal.getsignal(signal.SIGINT) == before
    assert load_checkpoint(str(tmp_path))[1]["read_out"]["bias"].shape == (2, 10)
    assert "step 30 of 50" in capsys.readouterr().err
    monkeypatch.undo()
    train(SMALL, tmp_path, quiet())
    check_it_is(uninterrupted, tmp_path)


def test_a_finished_run_stays_as_it_is_less_a_line_that_a_crash_cut_short(uninterrupted, tmp_path):
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    whole = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(whole + whole.splitlines()[0][:-5])
    (path / "versions.json").write_text('{"jax": "an earlier one"}')
    train(SMALL, path, quiet())
    assert json.loads((path / "versions.json").read_text()) == {"jax": "an earlier one"}
    assert (path / "metrics.jsonl").read_text() == whole
    assert identical(load_checkpoint(path)[1], load_checkpoint(uninterrupted)[1])


@pytest.mark.full
def test_a_finished_run_is_extended_as_if_its_steps_had_been_meant(uninterrupted, tmp_path, monkeypatch):
    train(changed(SMALL, steps=30), tmp_path, quiet())
    assert read_config(tmp_path / "parameters").steps == 30
    interrupt_at(monkeypatch, 40)
    with pytest.raises(Interrupted, match="step 40"):
        train(SMALL, tmp_path, quiet())
    assert load_checkpoint(tmp_path)[0] == SMALL
    monkeypatch.undo()
    train(SMALL, tmp_path, quiet())
    check_it_is(uninterrupted, tmp_path)
    with pytest.raises(Refusal, match=r"steps=50, not 20\. Choose another"):
        train(changed(SMALL, steps=20), tmp_path, quiet())


def test_more_steps_are_refused_where_they_would_have_changed_the_first(tmp_path):
    falling = changed(SMALL, steps=10, schedule="cosine_decay_schedule")
    RunDirectory(build_run(falling), tmp_path).close()
    with pytest.raises(Refusal, match=r"of 10 steps, not 20.* \(cosine_decay_schedule\)"):
        train(changed(falling, steps=20), tmp_path, quiet())
    assert read_config(tmp_path).steps == 10


def test_a_run_continued_within_a_chunk_ends_that_chunk_first(monkeypatch):
    """So that its lines are those of a run that was never stopped."""
    done = train_module.Metrics(jnp.zeros(2), jnp.zeros(2), jnp.zeros(2), jnp.full(2, -1))
    state = train_module.TrainState((), (), jnp.arange(2))
    monkeypatch.setattr(train_module, "compiled_chunk", lambda *_: lambda state, step: (state, done))
    chunks = train_module._chunks(RUN, [], lambda chunk: None, quiet(), 25, state)
    assert [chunk.step for chunk in chunks] == [30, 40, 50]


@pytest.mark.full
def test_a_run_starts_from_the_models_of_another_each_seed_from_its_own(uninterrupted, tmp_path):
    settings = {"steps": 10, "seeds": 1, "first_seed": 1, "normalizer": "ssmax"}
    config = changed(SMALL, start_from=str(uninterrupted), **settings)
    run = build_run(resolve_start(config))
    start = first_state(run)
    assert identical(start.parameters, jax.tree.map(lambda leaf: leaf[1:], load_checkpoint(uninterrupted)[1]))
    state = train(config, tmp_path / "next", quiet())
    assert read_config(tmp_path / "next").first_batch == SMALL.steps
    (tmp_path / "config.json").write_text(json.dumps(settings_of(changed(SMALL, first_batch=70))))
    third = changed(SMALL, start_from=str(tmp_path))  # which leaves out the batches of both before
    assert resolve_start(third).first_batch == 70 + SMALL.steps
    assert resolve_start(changed(third, first_batch=9)).first_batch == 9
    assert identical(train_module.compiled_chunk(run, start, 10)(start, np.int32(0))[0].parameters, state.parameters)
    # It is continued like any other.
    assert identical(train(config, tmp_path / "next", quiet()).parameters, state.parameters)


@pytest.mark.full
def test_numbers_that_only_the_new_normalizer_learns_start_as_they_always_do(tmp_path):
    config = Config(Signal(length=6, hidden=8, heads=2, layers=1, batch=4), steps=2, chunk=2)
    run = build_run(config)
    with contextlib.closing(RunDirectory(run, tmp_path)) as directory:
        directory.finish(run.initial_state())
    first = run.initial_state().parameters
    config = changed(config, start_from=str(tmp_path), normalizer="ssmax")
    start = first_state(build_run(resolve_start(config))).parameters
    np.testing.assert_allclose(start["blocks"][0].pop("attention")["s"], 1 / np.log(16), rtol=1e-6)
    first["blocks"][0].pop("attention", None)
    assert identical(start, first)


def test_a_run_that_does_not_fit_is_no_start(uninterrupted, tmp_path):
    start = changed(SMALL, start_from=str(uninterrupted))
    with pytest.raises(Refusal, match=r"has no seed 2: its seeds are 0 to 1; choose --first-seed"):
        train(changed(start, first_seed=1), tmp_path / "next", quiet())
    with pytest.raises(Refusal, match=r"other parameters: give this run the task and the sizes"):
        train(changed(start, width=16), tmp_path / "next", quiet())
    assert not (tmp_path / "next").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    compiled_chunk = train_module.compiled_chunk

    def spoiled(run, state, steps):
        program = compiled_chunk(run, state, steps)

        def spoil(state, step):
            if step == 30:
                state = state._replace(parameters=jax.tree.map(lambda leaf: leaf * np.float32("nan"), state.parameters))
            return program(state, step)

        return spoil

    monkeypatch.setattr(train_module, "compiled_chunk", spoiled)
    with pytest.raises(NotFiniteError, match=r"seed 0 is not finite at step 30.*keeps the state of step 30"):
        train(SMALL, tmp_path, quiet())
    assert metrics(tmp_path)[-1]["step"] == 30
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["20", "30"]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_checkpoint(tmp_path)[1]))


def test_directories_without_a_run_or_of_other_settings_are_refused(uninterrupted, tmp_path):
    for content, words in ((None, r"no config\.json"), (json.dumps(settings_of(SMALL)), "no checkpoint yet")):
        if content:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(Refusal, match=words):
            load_checkpoint(tmp_path)
    with pytest.raises(Refusal, match=r"width=8, not 16\. Choose another directory"):
        train(changed(SMALL, width=16), uninterrupted, quiet())
    copy = Path(shutil.copytree(uninterrupted, tmp_path / "copy"))
    (copy / "config.json").write_text(json.dumps(settings_of(changed(SMALL, width=4))))
    with pytest.raises(Refusal, match=r"width=8, not 4"):
        load_checkpoint(copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "config.json").write_text(json.dumps(settings_of(SMALL)))
    with pytest.raises(Refusal, match="finished run without its checkpoints"):
        train(changed(SMALL, steps=60), copy, quiet())
    assert load_checkpoint(copy)[0].steps == 50


def test_a_second_run_in_a_directory_is_refused_until_the_first_ends_and_so_are_patterns_of_orbax(tmp_path):
    for name in ("a[/b]", "a*", "a?"):
        with pytest.raises(Refusal, match=r"has one of \* \? \[ in its name: choose another --workdir$"):
            RunDirectory(RUN, tmp_path / name)
    assert not list(tmp_path.iterdir())
    first = RunDirectory(RUN, tmp_path / "run")
    with pytest.raises(Refusal, match=r"run is in use by another run: let it end, or choose another --workdir"):
        RunDirectory(RUN, tmp_path / "run")
    first.close()
    RunDirectory(RUN, tmp_path / "run").close()
