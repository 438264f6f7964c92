"""Damaged checkpoints and fits are refused in one line that names the file; what is whole goes on."""

import contextlib
import gc
import json
import os
import shutil
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from softmax_jax.experiment.measures.runs import fits_beside
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import checkpoint, run_directory
from softmax_jax.experiment.training.checkpoint import SUMS, sign
from softmax_jax.experiment.training.config import Config, settings_of
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.run_directory import RunDirectory, load_checkpoint
from softmax_jax.normalizers import registry, user_modules
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import TemperatureFit
from tests.faults import damage
from tests.msgpack import to_bytes

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "checkpoints" / "paper"
CONFIG = Config(MaxRetrieval(batch=8, min_items=2, max_items=3, width=4), steps=20, seeds=2, first_seed=3, chunk=10)
BUILT = run_directory.build_run
every_kind = pytest.mark.parametrize("kind", damage.KINDS)


@pytest.fixture(scope="module", autouse=True)
def run():
    """Built once for all cases: it takes longer than all else about one of them."""
    built = build_run(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_directory, "build_run", lambda config: built)
        yield built


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """A finished run, made without training: its directory and its two states."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    states = [jax.tree.map(lambda leaf, add=add: numbers(leaf, add), run.shapes) for add in (0, 1)]
    with contextlib.closing(RunDirectory(run, path)) as directory:
        for step, state in zip((10, 20), states):
            directory.save(step, state)
        directory.finish(states[1])
    return path, states


def numbers(leaf, add):
    return jnp.asarray(np.arange(leaf.size).reshape(leaf.shape) % 64 + add, leaf.dtype)


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole[0], tmp_path / "run"))


@pytest.fixture
def canary(tmp_path):
    """A file that appears if a pickle is loaded."""
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))


def refused(load, *words):
    """Whatever `load` raises is one line with these words."""
    with pytest.raises(Refusal, match=r"^[^\n]+$") as error:
        load()
    assert all(str(word) in str(error.value) for word in words), error.value
    assert len(str(error.value)) < 1500


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


@every_kind
def test_a_damaged_file_of_a_checkpoint_is_refused_by_name(copy, canary, kind):
    files = files_of(copy / "parameters")
    assert len(files) > 8
    for path in files:
        data = path.read_bytes()
        if data or kind in ("removed", "pickle"):
            damage.do(kind, path, canary)
            name = path.relative_to(copy / "parameters")
            refused(lambda: load_checkpoint(copy), copy / "parameters", SUMS if path.name == SUMS else name, "remove")
            path.write_bytes(data)
    (copy / "parameters" / "more").write_text("more")
    refused(lambda: load_checkpoint(copy), "more has another SHA-256 than its SHA256SUMS says")
    damage.do(kind, copy / "config.json", canary)
    refused(lambda: load_checkpoint(copy), "config.json")


def resumed(path):
    """What a run in the directory continues from."""
    with contextlib.closing(RunDirectory(run_directory.build_run(CONFIG), path)) as directory:
        return directory.resume()


def test_a_run_is_left_as_it_is_until_its_damaged_checkpoint_is_removed(whole, copy, canary):
    damage.do("flipped", next((copy / "checkpoints" / "20").glob("state/d/*")), canary)
    before = {path: path.read_bytes() for path in files_of(copy)}
    refused(lambda: resumed(copy), copy / "checkpoints" / "20", "state/d/", "remove that directory")
    assert {path: path.read_bytes() for path in files_of(copy)} == before
    shutil.rmtree(copy / "checkpoints" / "20")
    step, state = resumed(copy)
    assert step == 10
    assert same(state, whole[1][0])


def test_a_name_that_is_not_in_utf8_is_refused_before_its_checkpoint_is_called_damaged(tmp_path):
    path = tmp_path / "l\udcc3\udca4ufe"  # as Python reads läufe where the locale knows ASCII only
    path.mkdir()
    for use in (load_checkpoint, lambda path: RunDirectory(run_directory.build_run(CONFIG), path)):
        with pytest.raises(Refusal, match=rf"^{tmp_path}/läufe must be a name in UTF-8, and Python reads names in"):
            use(path)
    assert list(path.iterdir()) == []


def test_too_little_memory_and_defects_in_saving_are_no_damage(copy, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.ocp, "load", mock.Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        load_checkpoint(copy)
    monkeypatch.setattr(checkpoint.ocp, "save", mock.Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        checkpoint.write_checkpoint(tmp_path / "1", {}, {})


NO_SETTINGS = ("[1]", '{"steps": [1]}', '{"lengths": 1}')
NO_OBJECT = ("[" * 10**5, '"text"', "1" * 10**4)


@pytest.mark.parametrize("content", NO_SETTINGS + NO_OBJECT, ids=lambda text: text[:9])
def test_settings_of_a_wrong_kind_are_refused(copy, content):
    (copy / "config.json").write_text(content)
    words = ["is not the config of a run"] * (content in NO_SETTINGS)
    refused(lambda: load_checkpoint(copy), copy / "config.json", *words)


def signed_with(run, **changes):
    """The run with changed settings in each of its files, and sums that fit, as somebody hands it over."""
    settings = settings_of(CONFIG) | changes
    (run / "config.json").write_text(json.dumps(settings))
    for path in (run / "parameters", *(run / "checkpoints").iterdir()):
        sign(path, settings)


@pytest.mark.parametrize("setting", damage.SETTINGS)
def test_a_run_of_settings_that_no_run_has_is_refused_in_few_words(copy, monkeypatch, setting):
    if setting.strip() in ("normalizer", "optimizer", "schedule"):
        monkeypatch.setattr(run_directory, "build_run", BUILT)  # where these are read
    value, words = damage.SETTINGS[setting]
    signed_with(copy, **{setting.strip(" "): value})
    refused(lambda: load_checkpoint(copy), copy / "config.json", words)


@pytest.mark.parametrize("kind", damage.UNREADABLE)
@pytest.mark.parametrize("name", ["config.json", "parameters/more", f"parameters/{SUMS}"])
def test_no_file_of_a_run_is_waited_for_or_read_to_no_end(copy, kind, name):
    make, words = damage.UNREADABLE[kind]
    make(copy / name)
    if kind == "directory" and name.startswith("parameters"):
        (copy / name / "file").touch()
        words = "more/file has another SHA-256"
    if kind == "large" and name.startswith("parameters"):
        words = "have more than 67,"  # bytes: all together
    if name.endswith(SUMS):
        words = f"it has no {SUMS} that can be read"
    if (kind, name) == ("loop", "config.json"):
        words = "holds no run"  # as there is no such file
    refused(lambda: load_checkpoint(copy), words)


@pytest.mark.parametrize("kind", [kind for kind in damage.UNREADABLE if kind != "loop"])  # which is as no file
def test_nor_are_metrics_fits_and_models(copy, tmp_path, kind):
    make, words = damage.UNREADABLE[kind]
    make(copy / "metrics.jsonl")
    refused(lambda: resumed(copy), copy / "metrics.jsonl", words)
    make(tmp_path / "fit.json")
    refused(lambda: TemperatureFit.load(tmp_path / "fit.json"), tmp_path / "fit.json", words)
    if kind == "large":
        make(tmp_path / "x.msgpack")
        refused(lambda: load_checkpoint(tmp_path / "x.msgpack"), words)


def test_a_directory_that_is_a_link_is_no_part_of_a_checkpoint(copy, tmp_path):
    """Its files have no sums."""
    (copy / "parameters" / "state" / "d").rename(tmp_path / "d")
    (copy / "parameters" / "state" / "d").symlink_to(tmp_path / "d")
    refused(lambda: load_checkpoint(copy), copy / "parameters" / "state" / "d", "is a directory")


def first_of(change):
    """The change of one array of a tree, the bias of the keys."""

    def of_tree(tree):
        layer = tree["attention_key"]
        return tree | {"attention_key": layer | {"bias": change(layer["bias"])}}

    return of_tree


ARRAYS = {
    "fewer columns": (first_of(lambda a: a[:, 1:]), "attention_key/bias has shape (2, 3) and type float32"),
    "whole numbers": (first_of(lambda a: a.astype(jnp.int32)), "and type int32"),
    "NaN": (first_of(lambda a: a.at[0, 0].set(jnp.nan)), "attention_key/bias holds NaN or an infinite number"),
    "one fewer": (lambda tree: {name: tree[name] for name in tree if name != "read_in"}, "read_in/bias is missing"),
    "one more": (lambda tree: tree | {"more": jnp.ones(3)}, "more is no array of such a run"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_not_those_of_the_settings_are_refused_by_name(whole, copy, kind):
    change, words = ARRAYS[kind]
    shutil.rmtree(copy / "parameters")
    ocp.save(copy / "parameters", change(whole[1][1].parameters))
    sign(copy / "parameters", settings_of(CONFIG))
    refused(lambda: load_checkpoint(copy), copy / "parameters", words)


def test_a_random_key_of_an_optimizer_is_read_back(tmp_path):
    tree = {"key": jax.random.split(jax.random.key(3), 2), "count": jnp.int32(7)}
    checkpoint.write_checkpoint(tmp_path / "1", tree, {})
    checkpoint.verify(tmp_path / "1", tree)
    found = checkpoint.read_arrays(tmp_path / "1", jax.eval_shape(lambda: tree))
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(tree["key"]))
    assert found["count"] == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its tasks outlive their loop
@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt", "array_metadatas/*", "d/*"])
@pytest.mark.parametrize("content", [b"[]", b"[" * 10**5], ids=lambda content: str(content[:3]))
def test_damage_of_orbax_files_that_have_their_sums_is_refused(copy, caplog, name, content):
    path = next((copy / "parameters" / "state").glob(name))
    path.write_bytes(content)
    sign(copy / "parameters", settings_of(CONFIG))
    refused(lambda: load_checkpoint(copy), copy / "parameters")
    assert caplog.messages == []  # of Orbax and of its tasks
    gc.collect()  # or the tasks would be told of in the next test


METRICS = ("not json}", "{}", '{"step": "x", "seed": 0}', "[" * 10**5 + "}")


@pytest.mark.parametrize("line", METRICS, ids=lambda line: line[:9])
def test_metrics_that_no_run_wrote_are_refused(copy, line):
    (copy / "metrics.jsonl").write_text('{"step": 1, "seed": 0}\n' + line + "\n")
    refused(lambda: resumed(copy), copy / "metrics.jsonl", "is damaged: line 2 holds no metrics", "remove that file")


def test_a_run_names_no_fit_outside_of_its_directory(copy, tmp_path, monkeypatch):
    """By any path, also by a link within it, unless somebody typed the same text."""
    monkeypatch.setattr(user_modules, "_trusted", set())
    monkeypatch.chdir(tmp_path)
    for directory in (tmp_path, copy):
        shutil.copy(PAPER / "temperature.json", directory / "fit.json")
    (copy / "link.json").symlink_to("../fit.json")
    os.mkfifo(tmp_path / "fifo")
    for path in ("fit.json", "run/../fit.json", "run/link.json", tmp_path / "fit.json", "/dev/zero", "fifo", ""):
        signed_with(copy, normalizer=f"adaptive(fit={str(path)!r})")
        refused(lambda: load_checkpoint(copy), copy / "config.json", f" does not lie within {copy}: if you trust it")
    for path in (copy / "fit.json", "run/fit.json"):
        signed_with(copy, normalizer=(text := f"adaptive(fit={str(path)!r})"))
        assert load_checkpoint(copy)[0].normalizer == text
    signed_with(copy, normalizer=(text := f"adaptive(fit={str(tmp_path / 'fit.json')!r})"))
    registry.normalizer(text)
    assert load_checkpoint(copy)[0].normalizer == text


@every_kind
def test_a_fit_that_is_damaged_or_to_other_parameters_is_refused(copy, canary, kind):
    path = Path(shutil.copy(PAPER / "temperature.json", copy))
    refused(lambda: fits_beside(copy, {}), "was fitted to other parameters", "run python fit_temperature.py")
    damage.do(kind, path, canary)
    refused(lambda: TemperatureFit.load(path), path, "fit_temperature.py")


@pytest.mark.parametrize("kind", ["truncated", "emptied", "pickle"])
def test_a_damaged_msgpack_file_is_refused(whole, tmp_path, canary, kind):
    path = tmp_path / "x.msgpack"
    path.write_bytes(to_bytes(jax.tree.map(lambda leaf: leaf[0], whole[1][1].parameters)))
    assert same(load_checkpoint(path)[1], jax.tree.map(lambda leaf: leaf[:1], whole[1][1].parameters))
    damage.do(kind, path, canary)
    refused(lambda: load_checkpoint(path), "Flax msgpack bytes")
