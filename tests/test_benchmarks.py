"""What the benchmarks count, write and print; no time is asserted."""

import json
import math
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jax_core
import jax.interpreters.partial_eval as partial_eval
import jax.numpy as jnp
import pytest

from benchmarks import all as all_benchmarks, table
from benchmarks.costs import step_multiply_adds
from benchmarks.timing import Result, device_name
from softmax_jax.experiment.report.tables import put_into
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import trainer as training
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_model, build_run
from softmax_jax.files import write_csv

RESULT = Result("a step", "a port", ours=(1e-3, 2e-3, 4e-3), peers=(6e-3, 8e-3, 6e-3), unit="s per step")


def products(jaxpr: Any) -> Iterator[int]:
    """Multiply-adds of every matrix product in a program, less those with a number, which the penalty has."""
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general" and all(shapes):
            (contracted, _), _ = equation.params["dimension_numbers"]
            yield math.prod(shapes[2]) * math.prod(shapes[0][axis] for axis in contracted)
        for inner in jax_core.jaxprs_in_params(equation.params):
            yield from products(inner)


@pytest.mark.parametrize("items", [5, 16])
def test_the_formula_counts_the_products_of_the_step(items):
    task = MaxRetrieval(batch=4, min_items=items, max_items=items, width=24)
    parameters = jax.eval_shape(build_model(task)[1], jax.random.key(0))
    batch = jax.eval_shape(lambda: task.training_batch(jnp.int32(0), jnp.int32(0)))
    traced = jax.make_jaxpr(training.padded_gradient(build_run(Config(task))))(parameters, batch).jaxpr
    program, _ = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))  # nothing reads the gradient of the items
    assert sum(products(program)) == step_multiply_adds(items, task.batch, task.width)


def test_all_writes_one_file_of_every_module_there_is(tmp_path, monkeypatch, capsys):
    module: Any = types.ModuleType("benchmarks.fake")
    module.__spec__ = types.SimpleNamespace()
    module.measure = lambda quick: [RESULT] if quick else []
    monkeypatch.setitem(sys.modules, "benchmarks.fake", module)
    monkeypatch.setattr(all_benchmarks, "MODULES", ("fake", "not_there_yet"))
    monkeypatch.setattr(sys, "argv", ["all", "--quick", "--output", str(tmp_path)])
    all_benchmarks.main()
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(f"-{device_name()}.json")
    assert json.loads(path.read_text()) == [RESULT.record()]
    assert (RESULT.record()["ours_seconds"], RESULT.record()["peer_seconds"]) == (2e-3, 6e-3)
    assert RESULT.record().keys() == table.KEYS | {table.LOAD}
    printed = capsys.readouterr().out
    (row,) = (re.findall(r"\w[\w. ]*\w|\w", line) for line in printed.splitlines() if "a port" in line)
    assert row == ["a step", "a port", "1.5", "3", "6", "1.00 ms", "2.00 ms", "4.00 ms", "6.00 ms"]
    assert str(path) in printed


def test_every_module_of_the_tuple_that_exists_can_be_measured():
    paths = Path(all_benchmarks.__file__).parent.glob("*.py")
    names = {path.stem for path in paths if "def measure(quick: bool)" in path.read_text()}
    assert names == set(all_benchmarks.MODULES)


def test_a_table_comes_between_its_marks_and_nothing_else_changes():
    page = "above\n<!-- a -->\n{}\n<!-- /a -->\nbelow"
    assert put_into(page.format("old"), {"a": "new"}) == page.format("new")
    for broken in ("nothing", "<!-- a -->", "<!-- /a -->\n<!-- a -->"):
        with pytest.raises(ValueError, match="no place for a"):
            put_into(broken, {"a": "new"})


@pytest.mark.parametrize(
    ("name", "content"), [("2026-01-02-x.json", "[{}]"), ("2026-01-02-x.json", "{"), ("x.json", "[]")]
)
def test_what_is_no_result_file_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="no result file"):
        table.read_results(tmp_path / name)


def test_every_number_of_the_newest_result_files_is_in_the_files_and_the_table_of_the_page(tmp_path):
    text = table.SCALING.read_text()
    assert put_into(text, {"growth": table.render_growth(table.newest(all_benchmarks.RESULTS))}) == text
    for name, (columns, rows) in table.files_of(table.newest(all_benchmarks.RESULTS)).items():
        write_csv(tmp_path / name, columns, rows)
        assert (tmp_path / name).read_text() == (table.DATA / f"{name}.csv").read_text()


@pytest.mark.rare
def test_what_waits_for_a_gpu_runs_from_end_to_end_on_a_cpu(tmp_path):
    for part in range(1, 6):
        command = [sys.executable, "-m", "benchmarks.gpu", "--part", str(part), "--small", "--output", str(tmp_path)]
        ended = subprocess.run(command, cwd=table.DOCS.parent, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    (path,) = (tmp_path / "results").iterdir()
    rows = {result["name"].split(":")[0] for result in table.read_results(path)}
    assert {"2 seeds of 40 steps of paper, trained", "adaptive in two calls", "entmax15 in blocks"} <= rows
    assert "an item in sets of 1,024 items" in rows
