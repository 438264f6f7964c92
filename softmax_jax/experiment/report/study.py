"""The measurements that a page on trained runs shows."""

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from softmax_jax.experiment.measures import dispersion, refit
from softmax_jax.experiment.measures.dispersion import HARDMAX, Resolution
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.one_set import heads_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import SHORTEST, Loaded, numbered
from softmax_jax.experiment.measures.sets import Draw, key_of
from softmax_jax.experiment.measures.table import MEASURES, TOP
from softmax_jax.experiment.report.evaluated import Evaluated, evaluated
from softmax_jax.experiment.report.sentences import counted
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.progress import Log, Parts, with_progress
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.temperature import Rows, TemperatureFit

LOG = functools.partial(print, file=sys.stderr, flush=True)
SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""


class Study(NamedTuple):
    """The closer measurements of one run."""

    run: Evaluated
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]
    resolution: Resolution | None
    """None for a task that gives its items no priorities: then there are no maps of attention either."""


def measure(run: Loaded, lengths: Sequence[int], sets: int) -> Evaluated:
    """Measures a run under the normalizers asked for, and under those that the losses are counted from."""
    task, named, parts = run.config.task, run.normalizers, Parts()
    lengths = sorted(lengths or [n for n in task.test_lengths if n >= SHORTEST] or task.test_lengths)
    ranked = heads_of(task, lengths[0]).ranked
    measured = evaluate(
        run.parameters,
        named | ({HARDMAX: normalizer(HARDMAX)} if ranked else {}),
        seeds=run.config.all_seeds,
        lengths=lengths,
        sets={n: min(dispersion.sets_at(n, sets), task.test_sets(n)) for n in lengths},
        measures=tuple(MEASURES),
        references=(TRUE_ITEM,) if ranked else (),
        trained_under=run.config.normalizer,
        task=task,
        done=parts.done,
    )
    extent = f"{len(named)} normalizers, {len(lengths)} lengths up to {max(lengths):,} items, {sets} sets at each"
    path = ", ".join([str(run.path), *run.labels.values()])
    print(f"measuring {path}: {extent}, of {counted(run.config.seeds, 'seed')}", flush=True)
    return evaluated(run, list(with_progress(measured, lengths, f"measuring {path}", numbered(lengths), parts=parts)))


def look_closer(run: Evaluated, loaded: Loaded, fits: Mapping[str, TemperatureFit], sets: int) -> Study:
    """Looks at what the page tells of one run only: best temperatures beside its fits, and the logit of every item."""
    lengths = [measured.n for measured in run.measured if measured.n > 1][::2]
    keys = [key_of(Draw.REPORT)]
    options = {"seeds": loaded.config.all_seeds, "sets": max(1, sets // SEARCH_SHARE), "keys": keys, "task": run.task}
    searches = with_progress(
        refit.search_lengths(loaded.parameters, lengths=lengths, **options), lengths, "searching", numbered(lengths)
    )
    searched = {n: rows for n, (rows,) in zip(lengths, searches)}
    resolution = None
    if isinstance(run.task, MaxRetrieval) and run.measured[-1].n >= TOP:
        with Log(LOG, "reading the logits of single items"):
            resolution = dispersion.resolution(loaded.parameters, task=run.task)
    return Study(run, searched, fits, resolution)
