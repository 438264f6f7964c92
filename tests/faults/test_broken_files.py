"""Damaged checkpoints and fits: the newest good checkpoint is used and said, or one line says what is wrong."""

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from rich.console import Console

from softmax_jax import temperature as fits
from softmax_jax.measures.evaluation import named_normalizers
from softmax_jax.normalizers.fit_file import signed
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.runtime import checkpoints
from softmax_jax.runtime.checkpoints import SUMS, sign, verify
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.notebook import from_bytes, to_bytes
from softmax_jax.tasks.task import option
from softmax_jax.temperature import TemperatureFit
from softmax_jax.training import run as run_module, run_directory
from softmax_jax.training.config import Config, changed, settings_of
from softmax_jax.training.run_directory import RunDirectory, load_checkpoint
from tests.faults import damage
from tests.faults.damage import PARTS
from tests.tiers import full_except

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "checkpoints" / "paper"
CONFIG = Config(MaxRetrieval(sets=8, min_items=2, max_items=3, width=4), steps=20, seeds=2, first_seed=3, chunk=10)
SCRIPTS = {"evaluate.py": ["--checkpoint"], "fit_temperature.py": ["--checkpoint"], "report.py": []}


@pytest.fixture(scope="module", autouse=True)
def shapes():
    """Traced once for all cases: it takes longer than all else about one of them."""
    known = {}

    def cached(config, trace=run_directory.state_shapes):
        key = json.dumps(settings_of(config))
        known.setdefault(key, trace(config) if key not in known else None)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_directory, "state_shapes", cached)
        yield lambda: cached(CONFIG)


@pytest.fixture(scope="module")
def whole(shapes, tmp_path_factory):
    """A finished run, made without training: its state and its directory."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    states = [jax.tree.map(lambda leaf, add=add: numbers(leaf, add), shapes()) for add in (0, 1)]
    directory = RunDirectory(path, CONFIG)
    for step, state in zip((10, 20), states):
        directory.save(step, state)
    directory.finish(states[1])
    directory.close()
    return path, states


def numbers(leaf, add):
    return jnp.asarray(np.arange(leaf.size).reshape(leaf.shape) % 64 + add, leaf.dtype)


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def canary(tmp_path):
    """A file that appears if a pickle is loaded."""
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


def same(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def said(capfd):
    """What all of the process, Orbax's threads included, wrote on stderr: one line at most."""
    text = capfd.readouterr().err
    assert text.count("\n") <= 1
    return text


def refused(capfd, load, *words):
    """Whatever `load` raises is one line with these words, and nothing is said besides."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        load()
    message = str(error.value)
    assert all(word in message for word in words), message
    assert said(capfd) == ""


KINDS = (("truncated", 10), ("flipped", 0.5), ("emptied", 0), ("removed", 0), ("pickle", 0))
"""Ways to damage a file, and how much or where."""


PARTS_OF_A_CHECKPOINT = [
    *("_CHECKPOINT_METADATA", "commit_success.txt", "orbax.checkpoint", "config.json", SUMS),
    *("state/_METADATA", "state/_sharding", "state/array_metadatas/process_0", "state/manifest.ocdbt"),
    *("state/d/*", "state/ocdbt.process_0/manifest.ocdbt", "state/ocdbt.process_0/d/*"),
]


@pytest.mark.full
def test_the_cases_are_about_all_files_of_a_checkpoint(whole):
    for directory in (whole[0] / "parameters", whole[0] / "checkpoints" / "20", PAPER / "parameters"):
        verify(directory)
        files = {path for path in directory.rglob("*") if path.is_file()}
        assert files <= {path for name in PARTS_OF_A_CHECKPOINT for path in directory.glob(name)}


def test_such_a_pickle_creates_a_file_when_it_is_loaded(tmp_path):
    damage.disguise(tmp_path / "file", tmp_path / "canary")
    pickle.loads((tmp_path / "file").read_bytes()).close()
    assert (tmp_path / "canary").exists()


ARRAYS = [(kind, "state/d/*", amount) for kind, amount in KINDS]
EMPTY = "orbax.checkpoint"
EACH_FILE = [("removed" if name == EMPTY else "flipped", name, 0.7) for name in PARTS_OF_A_CHECKPOINT]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name", "amount"), [*EACH_FILE, *ARRAYS])
def test_the_newest_good_checkpoint_is_used_and_said(whole, copy, canary, capfd, kind, name, amount):
    (path,) = (copy / "parameters").glob(name)
    damage.do(kind, path, amount, canary)
    config, parameters = load_checkpoint(copy)
    seeds = config.all_seeds
    assert seeds == [3, 4]
    assert same(parameters, whole[1][1].parameters)
    line = said(capfd)
    assert line.startswith(f"warning: {copy}/parameters cannot be used: ")
    assert line.endswith(f"Using {copy}/checkpoints/20 instead\n")


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name", "amount"), [*ARRAYS, ("truncated", SUMS, 10), ("pickle", SUMS, 0)])
def test_without_another_checkpoint_one_line_says_what_is_wrong(copy, canary, capfd, kind, name, amount):
    shutil.rmtree(copy / "checkpoints")
    (path,) = (copy / "parameters").glob(name)
    damage.do(kind, path, amount, canary)
    words = [f"{copy}/parameters cannot be used", "Restore it from a copy"]
    refused(capfd, lambda: load_checkpoint(copy), *words)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "amount"), [*KINDS, ("retyped", 0)])
def test_settings_that_are_not_those_of_the_checkpoints_are_refused(copy, canary, capfd, kind, amount):
    damage.do(kind, copy / "config.json", amount, canary)
    if kind == "retyped":
        (copy / "config.json").write_text(json.dumps(settings_of(CONFIG) | {"steps": 20.0}))
    refused(capfd, lambda: load_checkpoint(copy), "config")


def rewrite(path, tree, config=CONFIG):
    """Another checkpoint in the place of one, whole by its own sums."""
    shutil.rmtree(path)
    ocp.save(path, tree)
    sign(path, settings_of(config))


def with_parameters(state, change):
    return state._replace(parameters=change(dict(state.parameters)))


STRUCTURES = {
    "a leaf is missing": (lambda parameters: parameters | {"item_in": {"bias": jnp.zeros((2, 4))}}, "is missing, not"),
    "a leaf is added": (lambda parameters: parameters | {"extra": jnp.zeros(2)}, "not to be there"),
    "another shape": (
        lambda parameters: parameters | {"read_out": {"kernel": jnp.zeros((2, 4, 7)), "bias": jnp.zeros((2, 7))}},
        "float32[2, 7], not float32[2, 10]",
    ),
    "another type": (
        lambda parameters: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), parameters),
        "float16[",
    ),
}
SETTINGS = {
    "another preset of other shapes": (changed(CONFIG, width=8), "width is 8 there and 4 here"),
    "another preset of the same shapes": (changed(CONFIG, l2=0.5), "l2 is 0.5 there and 0.001 here"),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("parameters", name) for name in [*STRUCTURES, *SETTINGS, "an earlier version", "a later version"]),
        ("checkpoints/20", "another shape"),
        ("checkpoints/20", "another preset of the same shapes"),
    ],
)
def test_a_whole_checkpoint_of_something_else_is_not_used(whole, copy, capfd, place, name):
    path, state = copy / place, whole[1][1]
    config, words = SETTINGS.get(name, (CONFIG, ""))
    change, words = STRUCTURES.get(name, (lambda parameters: parameters, words))
    changed = with_parameters(state, change)
    rewrite(path, changed.parameters if place == "parameters" else changed, config)
    if name == "an earlier version":
        (path / SUMS).unlink()
        words = f"it has no {SUMS}"
    if name == "a later version":
        (path / "config.json").write_text(json.dumps(settings_of(CONFIG) | {"rounds": 3}))
        add_sums(path)
        words = "rounds is no setting of max_retrieval"
    if place != "parameters":
        shutil.rmtree(copy / "parameters")
    assert same(load_checkpoint(copy)[1], whole[1][place == "parameters"].parameters)
    line = said(capfd)
    assert words in line
    assert line.endswith(f"Using {copy}/checkpoints/{20 if place == 'parameters' else 10} instead\n")


def add_sums(directory):
    """As `sha256sum` does, of whatever is there."""
    (directory / SUMS).unlink(missing_ok=True)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(directory)}\n" for path in files]
    (directory / SUMS).write_text("".join(lines))


def resumed(path):
    """What a run in the directory continues from."""
    with contextlib.closing(RunDirectory(path, CONFIG)) as directory:
        return directory.resume()


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name", "amount"), [*ARRAYS, ("removed", SUMS, 0)])
def test_a_run_continues_from_the_newest_good_checkpoint(whole, copy, canary, capfd, kind, name, amount):
    (path,) = (copy / "checkpoints" / "20").glob(name)
    damage.do(kind, path, amount, canary)
    directory = RunDirectory(copy, CONFIG)
    step, state = directory.resume()
    assert step == 10
    assert same(state, whole[1][0])
    assert said(capfd).endswith(f"Using {copy}/checkpoints/10 instead\n")
    directory.save(20, whole[1][1])
    directory.close()
    verify(copy / "checkpoints" / "20")
    assert resumed(copy)[0] == 20
    assert said(capfd) == ""


@pytest.mark.full
def test_a_run_whose_checkpoints_are_all_damaged_is_left_as_it_is(copy, canary, capfd):
    for step in ("10", "20"):
        damage.do("flipped", next((copy / "checkpoints" / step).glob("state/d/*")), 0.5, canary)

    def contents():
        return {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}

    before = contents()
    refused(capfd, lambda: resumed(copy), "checkpoints/20 cannot be used", "checkpoints/10 cannot be used")
    assert contents() == before


@pytest.mark.full
def test_a_finished_run_without_its_checkpoints_is_not_trained_anew(copy, capfd):
    shutil.rmtree(copy / "checkpoints")
    refused(capfd, lambda: resumed(copy), "holds a finished run without its checkpoints", "--workdir")


@pytest.mark.full
def test_damaged_parameters_of_a_finished_run_are_written_again(whole, copy, canary, capfd):
    damage.do("flipped", next((copy / "parameters").glob("state/d/*")), 0.5, canary)
    run_module.run(CONFIG, copy, Console(file=io.StringIO()))
    assert same(load_checkpoint(copy)[1], whole[1][1].parameters)
    assert said(capfd) == ""


@pytest.mark.full
@pytest.mark.parametrize("line", ['{"step": 10, "se', '{"loss": 1}', "\xff"])
def test_a_damaged_line_of_metrics_is_named(copy, capfd, line):
    (copy / "metrics.jsonl").write_bytes(line.encode("latin-1") + b"}\n")
    refused(capfd, lambda: resumed(copy), "metrics.jsonl is damaged", "remove it")


@pytest.mark.full
def test_a_run_of_an_earlier_version_is_trusted_by_a_command(whole, copy, capsys, monkeypatch):
    for sums in list(copy.rglob(SUMS)):
        sums.unlink()
        (sums.parent / "config.json").unlink()
    with pytest.raises(ValueError, match=rf"python -m softmax_jax.runtime.checkpoints {copy} makes one"):
        load_checkpoint(copy)
    monkeypatch.setattr("sys.argv", ["checkpoints", str(copy)])
    checkpoints.main()
    assert capsys.readouterr().out.count(SUMS) == 3
    assert same(load_checkpoint(copy)[1], whole[1][1].parameters)
    monkeypatch.setattr("sys.argv", ["checkpoints", str(copy / "checkpoints")])
    with pytest.raises(SystemExit, match="2"):
        checkpoints.main()
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "amount"), full_except(KINDS, "pickle"))
def test_a_damaged_fit_is_refused(tmp_path, canary, capfd, kind, amount):
    path = Path(shutil.copy(PAPER / "temperature.json", tmp_path))
    damage.do(kind, path, amount, canary)
    refused(capfd, lambda: TemperatureFit.load(path), str(path), "fit_temperature.py")


CONTENTS = {
    "a key is missing": (lambda fit: {key: fit[key] for key in fit if key != "coverage"}, "coverage"),
    "a key is added": (lambda fit: fit | {"rounds": 3}, "rounds"),
    "three ends": (lambda fit: fit | {"beta_at_ends": [1, 2, 3]}, "beta_at_ends is [1, 2, 3]"),
    "enormous numbers": (lambda fit: fit | {"coefficients": [1e308, -1e308, 0.0]}, "within its own range"),
    "no object": (lambda fit: list(fit.values()), "no temperature fit"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONTENTS)
def test_a_fit_of_other_content_is_refused(tmp_path, capfd, name):
    fit = json.loads((PAPER / "temperature.json").read_text())
    del fit["sha256"]
    change, words = CONTENTS[name]
    content = change(fit)
    path = tmp_path / "temperature.json"
    path.write_text(json.dumps(signed(content) if isinstance(content, dict) else content))
    refused(capfd, lambda: TemperatureFit.load(path), str(path), words)
    path.write_text("[" * 100_000)
    refused(capfd, lambda: TemperatureFit.load(path), str(path), "cannot be read as JSON")


@pytest.mark.full
def test_a_fit_to_other_parameters_is_not_taken_for_that_of_the_checkpoint(copy, capfd):
    shutil.copy(PAPER / "temperature.json", copy)
    load = load_checkpoint(copy)[1]
    refused(capfd, lambda: fits.fits_beside(copy, load), "was fitted to other parameters", "run fit_temperature.py")
    assert fits.fits_beside(PAPER, load_checkpoint(PAPER)[1]).keys() == fits.FITS.keys()


@pytest.mark.full
def test_a_fit_goes_by_its_name_where_there_is_one(copy, capfd):
    _, parameters = load_checkpoint(PAPER)
    named = named_normalizers([fits.ALL_LENGTHS], PAPER, parameters)
    expected = normalizer(f"adaptive(fit='{PAPER / fits.FITS[fits.ALL_LENGTHS]}')")
    assert named == {fits.ALL_LENGTHS: expected}
    load = functools.partial(named_normalizers, [fits.ALL_LENGTHS], copy, parameters)
    refused(capfd, load, "--normalizers has adaptive_refit", "run fit_temperature.py")


@pytest.fixture(scope="module")
def msgpack(whole):
    """The bytes of one seed of the run, as a published recreation stores them."""
    return to_bytes(jax.tree.map(lambda leaf: leaf[0], whole[1][1].parameters))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "amount"), KINDS)
def test_a_damaged_msgpack_file_is_refused(msgpack, tmp_path, canary, capfd, kind, amount):
    path = tmp_path / "x.msgpack"
    path.write_bytes(msgpack)
    add_sums(tmp_path)
    assert load_checkpoint(path)[0].all_seeds == [0]
    damage.do(kind, path, amount, canary)
    refused(capfd, lambda: load_checkpoint(path), str(path))


@pytest.mark.full
def test_a_msgpack_file_without_a_checksum_is_used_and_that_is_said(whole, msgpack, tmp_path, capfd):
    path = tmp_path / "x.msgpack"
    path.write_bytes(msgpack)
    expected = jax.tree.map(lambda leaf: leaf[:1], whole[1][1].parameters)
    assert same(load_checkpoint(path)[1], expected)
    line = said(capfd)
    assert "it has no checksum" in line
    subprocess.run(line[line.rindex("(") + 1 : line.rindex(")")], shell=True, check=True)
    assert same(load_checkpoint(path)[1], expected)
    assert said(capfd) == ""
    (tmp_path / SUMS).write_text("no sums\n")
    refused(capfd, lambda: load_checkpoint(path), f"{SUMS} is damaged")


@pytest.mark.full
@pytest.mark.parametrize(("kind", "amount"), [("truncated", part) for part in range(PARTS)] + [("pickle", 0)])
def test_a_damaged_msgpack_file_without_a_checksum_is_refused(msgpack, tmp_path, canary, kind, amount):
    path = tmp_path / "x.msgpack"
    path.write_bytes(msgpack)
    damage.do(kind, path, amount, canary)
    with pytest.raises(ValueError, match="Flax msgpack bytes"):
        load_checkpoint(path)


ATTENTION = "MultiHeadDotProductAttention_0"
TREES = {
    "a layer is missing": (lambda tree: {name: tree[name] for name in tree if name != "Dense_3"}, "Dense_3"),
    "a layer is added": (lambda tree: tree | {"Dense_6": tree["Dense_5"]}, "Dense_6"),
    "another shape": (lambda tree: jax.tree.map(lambda leaf: leaf[..., :3], tree), "Dense_1"),
    "not finite": (lambda tree: jax.tree.map(lambda leaf: leaf * np.float32("nan"), tree), "finite"),
    "two heads": (lambda tree: tree | {ATTENTION: jax.tree.map(two_heads, tree[ATTENTION])}, ATTENTION),
    "no tree": (lambda tree: [1, 2], "tree"),
}


def two_heads(leaf):
    """The kernel of another model, with as many numbers."""
    shape = {(4, 1, 4): (4, 2, 2), (1, 4): (2, 2), (1, 4, 4): (2, 2, 4)}.get(leaf.shape, leaf.shape)
    return leaf.reshape(shape)


@pytest.mark.full
@pytest.mark.parametrize("name", TREES)
def test_a_msgpack_file_of_another_model_is_refused(msgpack, capfd, name):
    change, words = TREES[name]
    data = flax.serialization.msgpack_serialize(change(flax.serialization.msgpack_restore(msgpack)))
    refused(capfd, lambda: from_bytes(data), words)


@pytest.fixture
def paper(tmp_path):
    """A copy of the checkpoint that the project ships."""
    return Path(shutil.copytree(PAPER, tmp_path / "paper"))


@pytest.mark.full
@pytest.mark.parametrize("position", [0.05, 0.5, 0.95])
def test_one_bit_of_the_shipped_parameters_is_not_lost(paper, capfd, position):
    damage.flip(next((paper / "parameters").glob("state/ocdbt.process_0/d/*")), position)
    refused(capfd, lambda: load_checkpoint(paper), "has another SHA-256 than its SHA256SUMS says")


def script(name, arguments, monkeypatch, cwd):
    """The exit status of a script, in this process: a start of Python and JAX takes seconds."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", [str(ROOT / name), *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / name), run_name="__main__")
    return stop.value.code


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("evaluate.py", "parameters/state/d/*"),
        ("evaluate.py", "temperature.json"),
        ("fit_temperature.py", "parameters/SHA256SUMS"),
        ("report.py", "config.json"),
    ],
)
def test_scripts_end_with_one_line_and_status_2(paper, tmp_path, monkeypatch, canary, capfd, name, what):
    (path,) = paper.glob(what)
    damage.do("pickle", path, 0, canary)
    (tmp_path / "here").mkdir()
    assert script(name, [*SCRIPTS[name], paper], monkeypatch, tmp_path / "here") == 2
    line = said(capfd)
    assert line.startswith("error: ")
    assert str(paper) in line
    assert list((tmp_path / "here").iterdir()) == []


def options(config):
    """The command-line options of settings."""
    names = ("steps", "seeds", "first_seed", "sets", "min_items", "max_items", "width", "chunk")
    return [part for name in names for part in (option(name), settings_of(config)[name])]


@pytest.mark.full
def test_a_run_of_damaged_checkpoints_ends_training_with_one_line_and_status_2(
    copy, tmp_path, monkeypatch, canary, capfd
):
    for step in ("10", "20"):
        damage.do("pickle", next((copy / "checkpoints" / step).glob("state/d/*")), 0, canary)
    arguments = ["quick", *options(CONFIG), "--no-compilation-cache", "--workdir", copy]
    assert script("train.py", arguments, monkeypatch, tmp_path) == 2
    assert said(capfd).startswith(f"error: {copy}/checkpoints/20")


def process(name, *arguments, cwd):
    """A script as a user runs it."""
    command = [sys.executable, ROOT / name, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_command_lines_use_the_newest_good_checkpoint_and_say_so(tmp_path, canary):
    """Train, damage, evaluate and continue: as processes, whose threads write to stderr as they end."""
    arguments = ["quick", *options(CONFIG), "--chunks-per-checkpoint", 1, "--workdir", tmp_path / "run"]
    done = process("train.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    good = load_checkpoint(tmp_path / "run")[1]
    for place in ("parameters", "checkpoints/20"):
        damage.do("flipped", next((tmp_path / "run" / place).glob("state/d/*")), 0.5, canary)
    measured = ("--checkpoint", tmp_path / "run", "--lengths", 4, "--sets", 8, "--normalizers", "softmax")
    done = process("evaluate.py", *measured, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("measuring")]
    assert len(warnings) == 1
    assert warnings[0].endswith(f"Using {tmp_path}/run/checkpoints/10 instead")
    done = process("train.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert same(load_checkpoint(tmp_path / "run")[1], good)
    for damaged in (tmp_path / "run").rglob("state/d/*"):
        damage.do("flipped", damaged, 0.5, canary)
    for name, choice in SCRIPTS.items():
        done = process(name, *choice, tmp_path / "run", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: ")


@pytest.mark.slow
def test_six_hundred_random_damages(whole, tmp_path, canary, capfd):
    """Up to three files of a run at once, in random ways: one line, or the numbers of one of its checkpoints."""
    draw = random.Random(0)
    outcomes = {"right": 0, "refused": 0}
    files = sorted(path.relative_to(whole[0]) for path in whole[0].rglob("*") if path.is_file())
    for case in range(600):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(whole[0], tmp_path / "run")
        for name in draw.sample(files, draw.randint(1, 3)):
            kind = draw.choice(["truncated", "flipped", "flipped", "flipped", "emptied", "removed", "pickle"])
            path = tmp_path / "run" / name
            if path.stat().st_size or kind in ("removed", "pickle"):
                damage.do(kind, path, draw.randrange(PARTS) if kind == "truncated" else draw.random(), canary)
        try:
            config, parameters = load_checkpoint(tmp_path / "run")
            seeds = config.all_seeds
        except ValueError as error:
            outcomes["refused"] += 1
            message = str(error) + said(capfd)
        else:
            outcomes["right"] += 1
            assert seeds == [3, 4]
            message = said(capfd)
            used = 0 if "checkpoints/10 instead" in message else 1
            assert same(parameters, whole[1][used].parameters), case
        assert message.count("\n") <= 1
    assert min(outcomes.values()) > 50
    print(outcomes)
