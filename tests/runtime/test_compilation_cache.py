"""Compiled programs are kept, found again and compute the same bits; where they cannot be kept, nothing is said."""

import io
import json
import time
import types

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from rich.console import Console
from softmax_jax.runtime import compilation_cache
from softmax_jax.runtime.compilation_cache import CompileTime, default_directory, keep_compiled_programs

from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training import run as run_module
from softmax_jax.training.config import Config
from softmax_jax.training.trainer import chunk_trainer, initial_state

TINY = Config(MaxRetrieval(sets=8, min_items=2, max_items=2, width=8), steps=4, seeds=2, chunk=2)
SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch):
    """What a process that has used no cache yet finds, and every program worth a file."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    monkeypatch.setattr(compilation_cache, "LEAST_SECONDS", 0.0)
    jax_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


def train():
    """Trains as a new process would: nothing is compiled yet. The result, and the events of the cache."""
    events = []

    def listen(event, **_):
        events.append(event.rpartition("/")[2])

    jax.clear_caches()
    jax.monitoring.register_event_listener(listen)
    try:
        state, _ = chunk_trainer(TINY)(initial_state(TINY), 0, 2)
    finally:
        jax.monitoring.unregister_event_listener(listen)
    return jax.tree.map(np.asarray, state), events.count("cache_hits"), events.count("cache_misses")


def identical(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.slow
def test_programs_are_kept_and_found_again_and_compute_the_same_bits(tmp_path):
    assert keep_compiled_programs(tmp_path, keep=False) is None
    without, hits, misses = train()
    assert (hits, misses, list(tmp_path.iterdir())) == (0, 0, [])
    jax.config.update("jax_enable_compilation_cache", True)
    jax_cache.reset_cache()
    assert keep_compiled_programs(tmp_path / "new" / "cache") == tmp_path / "new" / "cache"
    compiled, hits, misses = train()
    assert hits == 0
    assert misses >= 2
    kept, hits, misses_again = train()
    assert (hits, misses_again) == (misses, 0)
    assert identical(without, compiled)
    assert identical(without, kept)
    for path in (tmp_path / "new" / "cache").iterdir():  # a crash may leave half a file
        path.write_bytes(b"not a program")
    recompiled, hits, _ = train()
    assert hits == 0
    assert identical(without, recompiled)


def test_a_directory_that_cannot_be_written_means_no_cache(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert keep_compiled_programs(tmp_path / "file" / "cache") is None
    assert not getattr(jax.config, SETTINGS[0])


def test_the_default_is_in_the_users_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keep_compiled_programs() == default_directory() == tmp_path / "softmax_jax"
    for elsewhere in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", elsewhere)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert default_directory() == tmp_path / "home" / ".cache" / "softmax_jax"


def test_what_jax_was_told_goes_before_the_default_and_an_option_before_both(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    assert keep_compiled_programs() == tmp_path / "jax"
    assert keep_compiled_programs(tmp_path / "option") == tmp_path / "option"


def test_compile_time_is_that_of_compiling_alone():
    jax.clear_caches()
    double = jax.jit(lambda x: x + x)
    with CompileTime() as first:
        start = time.perf_counter()
        double(1.0)
        elapsed = time.perf_counter() - start
    with CompileTime() as second:
        double(2.0)
    assert 0 < first.seconds <= elapsed
    assert second.seconds == 0


@pytest.mark.full
def test_a_run_says_how_long_it_compiled_and_counts_that_in_no_rate(tmp_path, monkeypatch):
    output = io.StringIO()
    console = Console(file=output, force_terminal=False)
    clock = iter(range(1000))
    monkeypatch.setattr(run_module, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(CompileTime, "seconds", 0.75)
    run_module.run(TINY, tmp_path, console)
    assert "compiled in 0.8 s" in output.getvalue()
    rates = [json.loads(line)["steps_per_second"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rates == [8.0] * 4  # two steps in a second less 0.75
