"""Claims of the README."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import read
from softmax_jax.experiment.measures.agreement import with_nulls
from softmax_jax.experiment.report.accuracy import ACCURACY
from studies.precision import models_of_all_runs, without_model

PAGE = "README.md"
SETTINGS = {PAGE: ("Python 3.11",)}
Claims = Iterator[tuple[str, str]]


def agreement() -> Claims:
    lengths, accuracies = models_of_all_runs(read("precision_study/accuracy.csv"))
    published = tuple(ACCURACY["softmax"].values()), tuple(ACCURACY["adaptive"].values())
    models, _, ssmax, nothing = with_nulls(accuracies, lengths, published).values()
    yield PAGE, f"{models.baseline:.1f} points from the published softmax row and {models.method:.1f} from the adaptive"
    gain = f"{models.gain:.2f} ± {models.gain_interval:.2f} points in the mean (published: {models.published_gain:.2f})"
    yield PAGE, gain
    yield PAGE, f"SSMax gains {ssmax.gain:.2f} ± {ssmax.gain_interval:.2f}"
    yield PAGE, f"lies {nothing.method:.1f} points from the published adaptive row"
    off = accuracies["softmax"].mean(0) - np.array(published[0])
    high = off[np.array(lengths) >= 1024]
    yield PAGE, f"softmax is {high.min():.1f} to {high.max():.1f} points too high"


def times() -> Claims:
    *others, last = (f"{seconds:.0f}" for seconds in read("first_commands.csv")["cpu_seconds"])
    yield PAGE, f"The three take {', '.join(others)} and {last} s of CPU time"


def reference() -> Claims:
    cells = " | ".join(f"{without_model(n):.1f}" for n in (16, 64, 256, 1024, 4096, 16384))
    yield PAGE, f"| *no model* | {cells} |"


def losses() -> Claims:
    means = read("paper.csv", n=1024).group_by("normalizer").agg(pl.mean("loss"))
    loss = dict(means.rows())
    yield PAGE, f"costs loss: {loss['adaptive'] - loss['softmax']:.2f} nats at 1,024 items"


def float32() -> Claims:
    def mean(normalizer: str, n: int) -> str:
        return f"{read('reach/frontier.csv', normalizer=normalizer, n=n)['accuracy'].mean():.1f} %"

    softmax, adaptive = ([mean(name, n) for n in (1024, 16384)] for name in ("softmax", "adaptive"))
    yield PAGE, f"answers {softmax[0]} of sets of 1,024 items and {softmax[1]} of 16,384 under softmax"
    yield PAGE, f"{adaptive[0]} and {adaptive[1]} under the adaptive temperature"
