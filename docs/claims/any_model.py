"""Claims of the page on any model."""

from collections.abc import Iterator

import polars as pl

from docs.claims import read
from docs.torch_models import torch_table

PAGE = "docs/any_model.md"


def tour() -> Iterator[tuple[str, str]]:
    frame = read("any_model_tour.csv")
    for label, name in {
        "softmax": "softmax",
        "swapped to SSMax": "ssmax",
        "swapped to SSMax, with one s per head learned on sets of 16": "ssmax, learned s",
    }.items():
        yield PAGE, f"| {label} | {frame.filter(normalizer=name)['1024'].item():.1f} |"


def models_of_other_libraries() -> Iterator[tuple[str, str]]:
    models = read("models.csv")
    assert len(models) == 19
    assert models.select("hardmax", "ssmax", "entmax15").max().row(0) == (0, 0, 0)
    yield PAGE, "[Nineteen models](data/models.csv) keep every bit"
    yield PAGE, f"gradients differ by at most {models['gradient'].max():.0e} of the largest entry".replace("e-0", "e-")


def models_of_pytorch() -> Iterator[tuple[str, str]]:
    for line in torch_table().splitlines():
        yield PAGE, line
    models = read("torch_models.csv")
    run = models.filter(pl.col("refused").is_null())
    assert len(run) >= 20
    assert max(run.select("logits", "ssmax", "weights").max().row(0)) < 1e-5
    (version,) = models["version"].unique()
    yield PAGE, f"Tested are {len(run)} small random models under transformers {version}"
    yield PAGE, f"{len(models) - len(run)} more are refused"
    yield PAGE, f"## Tested on {len(models)} models of PyTorch"


def cost_of_a_swap_in_pytorch() -> Iterator[tuple[str, str]]:
    frame = read("torch_cost.csv")
    times = {(part, name): value for part, name, value in frame.select("what", "function", "times").rows()}
    step, tracing, both = (
        [times[part, f"swapped to {name}"] for name in ("softmax", "SSMax")]
        for part in ("a step", "tracing", "tracing and compiling")
    )
    assert step[0] <= 1.05
    yield PAGE, f"A compiled step takes {step[0]:.2f} times as long under a swap to softmax"
    yield PAGE, f"and {step[1]:.2f} times under SSMax"
    yield PAGE, f"Tracing takes {tracing[0]:.1f} and {tracing[1]:.1f} times as long"
    yield PAGE, f"with compilation {both[0]:.1f} and {both[1]:.1f} times"
    rounds = frame.filter(what="a step")["rounds"].unique().item()
    yield PAGE, f"medians of {rounds} rounds, processor time"
