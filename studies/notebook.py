"""Tests a model on the published recreation's own stream of sets, whose accuracies compare with tables made from it.

    python -m studies.notebook parameters.msgpack --output results/notebook

The stream has 32 sets of 2, 4, 8, … 4,096 items from each of eleven keys.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import tyro
from jaxtyping import Array, Float

from softmax_jax.experiment.commands.parse import TrustCode, normalizer_names
from softmax_jax.experiment.measures.over_sets import models_of, on_every_set, set_by_set
from softmax_jax.experiment.report.tables import markdown_table
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import CLASSES, Batch
from softmax_jax.experiment.training.progress import with_progress
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from studies.common import Options, TrainedRun, require_kind, start

LENGTHS = tuple(2**power for power in range(1, 13))
"""Items of the test sets."""
KEYS = range(11, 22)
"""The seeds of the keys of the test sets."""
SETS = 32
"""Test sets of each key."""
COLUMNS = ("normalizer", "n", "seed", "accuracy")
"""Of accuracies.csv; the accuracy in percent."""


def stream(items: int) -> Batch:
    """Returns the test sets of a length, those of the eleven keys one after the other.

    Their random bits are those of JAX's old threefry layout, as those of the recreation were.
    """

    def key_sets(seed: int) -> Batch:
        _, key = jax.random.split(jax.random.key(seed))
        _, rho_key, kappa_key, query_key = jax.random.split(key, 4)
        rho = jax.random.uniform(rho_key, (SETS, items, 1), jnp.float32)
        kappa = jax.random.randint(kappa_key, (SETS, items), 0, CLASSES, jnp.int32)
        query = jax.random.uniform(query_key, (SETS, 1, 1), jnp.float32)[:, 0]
        features = jnp.concatenate([rho, jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
        answer = jnp.take_along_axis(kappa, rho.argmax(1), 1)[:, 0]
        return Batch(features, query, jnp.ones(kappa.shape, bool), answer)

    with jax.threefry_partitionable(False):
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *map(key_sets, KEYS))


def right(models: Any, batch: Batch, normalizers: Sequence[Normalizer]) -> Float[Array, " normalizers"]:
    """Returns 1 for each normalizer under which the model answers a set right, and 0 for the others."""
    whole = jax.tree.map(lambda leaf: leaf[None], batch)
    scores = [models[0](whole, normalizer).scores for normalizer in normalizers]
    return jnp.stack([(reached.argmax(-1) == whole.answer).mean() for reached in scores])


def accuracies(run: TrainedRun[MaxRetrieval], normalizers: Sequence[str], items: int) -> pl.DataFrame:
    """Returns the accuracy of each model of a run under each normalizer on the stream's sets of a length."""
    drawn = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(run.seeds), *leaf.shape)), stream(items))
    named = tuple(map(normalizer, normalizers))
    models = models_of(run.task, run.parameters, items=items * SETS * len(KEYS))
    answers = set_by_set(on_every_set(right, models, drawn, run.task.at_once(items), named))
    rows = [
        (name, items, seed, 100 * float(share))
        for name, shares in zip(normalizers, answers.mean(1, dtype=np.float64).T)
        for seed, share in zip(run.seeds, shares)
    ]
    return pl.DataFrame(rows, COLUMNS, orient="row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("notebook",)

    parameters: Annotated[Path, tyro.conf.Positional]
    """A Flax msgpack file of the recreation's parameters, or the directory of a run of max retrieval."""
    normalizers: tuple[str, ...] = ("softmax", "adaptive")
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu."""
    trust_code: TrustCode = False

    def __post_init__(self) -> None:
        super().__post_init__()
        normalizer_names(self.normalizers)


def study(arguments: Arguments) -> None:
    """Measures, writes, prints the table."""
    config, parameters = load_checkpoint(arguments.parameters)
    run = TrainedRun(arguments.parameters.name, require_kind(config.task, MaxRetrieval), parameters, config.all_seeds)
    by_length = (accuracies(run, arguments.normalizers, items) for items in LENGTHS)
    frame = pl.concat(with_progress(by_length, LENGTHS, "measuring"))
    means = {(name, n): mean for name, n, mean in frame.group_by(COLUMNS[:2]).agg(pl.mean("accuracy")).rows()}
    rows = [[str(n), *(f"{means[name, n]:.2f}" for name in arguments.normalizers)] for n in LENGTHS]
    table = markdown_table(["items", *arguments.normalizers], rows)
    print(table)
    arguments.write("notebook", {"accuracies": frame}, {}, {"notebook": table})


if __name__ == "__main__":
    start(Arguments, __doc__, study)
