"""Draws every picture of the documentation from its data: python -m softmax_jax.studies.pictures [NAME ...].

The data are the CSV files of docs/data, which other commands wrote, the fits beside the checkpoints, and the
normalizers themselves. A picture holds the fingerprint of its chart, by which the tests find one that is out of date.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import polars as pl
import tyro

from projects.clrs_text import report as clrs_report
from softmax_jax.files import write_whole
from softmax_jax.measures.fits import FITS
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import accuracy, gallery, looks, probed, temperature
from softmax_jax.report.drawing import svg
from softmax_jax.runtime.command_line import check_directory, one_line_errors, parse
from softmax_jax.studies import (
    ablation_report,
    critical_report,
    extremes_report,
    precision_report,
    trained_or_swapped_report,
)
from softmax_jax.tasks import published
from softmax_jax.temperature import TemperatureFit
from softmax_jax.training.run_directory import SHIPPED

DOCS = Path(__file__).parents[2] / "docs"
SWAPS = ("softmax", "adaptive", "ssmax", "adaptive_refit_train", "hardmax")
"""Of the picture that says what helps; none of them saw a longer set than those of training."""
BAND = "mean of 10 seeds, 95 % band"
RUNS = {"paper_float32": "paper's recipe", "frontier": "frontier", "near_ties": "near ties"}
MASS = {"needle": "the needle", "first": "the first token", "rest": "the rest"}


def table(name: str) -> pl.DataFrame:
    """One of the CSV files."""
    return pl.read_csv(DOCS / "data" / f"{name}.csv")


def causes() -> Any:
    """What falls, why, and what helps."""
    return accuracy.causes_chart(
        table("paper_float32"),
        SWAPS,
        "Why does attention lose the largest item, and what helps?",
        f"in float32, trained under softmax on at most 16 items; only the normalizer changes in the test; {BAND}",
    )


def replication() -> Any:
    """Ours beside the published rows."""
    frame = table("paper").filter(pl.col("normalizer").is_in(list(published.ACCURACY)), pl.col("n") >= 16)
    return accuracy.accuracy_chart(frame, "Does the replication give the published numbers?")


def reach() -> Any:
    """Three recipes, as far as 65,536 items."""
    frames = {called: table(f"reach/{run}") for run, called in RUNS.items()}
    title = "How far can attention reach that was trained on sixteen items?"
    return accuracy.reach_chart(frames, title, f"only the recipe of the training differs; {BAND}")


def largest_weight() -> Any:
    """Dispersion, in theory and in a trained model."""
    named = {name: normalizer(name) for name in ("softmax", "adaptive", "ssmax", "entmax15", "hardmax")}
    measured = table("paper_float32").filter(pl.col("normalizer").is_in(SWAPS))
    with jax.enable_x64(True):  # so that what is left after rounding is the same on any machine
        return looks.weight_charts(named, 3.0, measured, f"A trained head on max retrieval; {BAND}")


def refits() -> Any:
    """The temperature fits of three shipped runs."""
    called = {"paper": "paper: products rounded", "frontier": "frontier", "paper_float32": "paper in float32"}
    fits = {
        shown: {name: TemperatureFit.load(SHIPPED / run / file) for name, file in FITS.items()}
        for run, shown in called.items()
    }
    return temperature.fits_chart(
        fits, "Which temperature is best for a row of given entropy?", "it depends on the model; 95 % bands over seeds"
    )


def needle() -> Any:
    """Retrieval by a pretrained model."""
    model = "all-MiniLM-L6-v2; mean of the rounds, 95 % band"
    return probed.found_chart(table("needle/accuracy"), "Is one of 32 needles found in running text?", model)


def of_precision() -> dict[str, Callable[[], Any]]:
    """Those of the study of precision."""
    of_paper, of_recipes = ("accuracy", "ceilings"), ("recipes", "recipe_ceilings")

    def read(names: tuple[str, ...]) -> list[pl.DataFrame]:
        return [table(f"precision_study/{name}") for name in names]

    return {
        "precision_published": lambda: precision_report.published_chart(*read(of_paper)),
        "precision_steps": lambda: precision_report.steps_chart(*read(of_recipes)),
    }


def of_frontier() -> dict[str, Callable[[], Any]]:
    """Those of the ablation."""

    def pairs(n: int) -> Any:
        return ablation_report.pairs_chart(table("frontier/accuracy"), n)

    heat_maps = {f"frontier_pairs_{n}": functools.partial(pairs, n) for n in (1024, 4096, 16384)}
    return {"frontier_losses": lambda: ablation_report.losses_chart(table("frontier/losses")), **heat_maps}


def of_normalizer(name: str) -> Any:
    """The picture of one entry of the page of all normalizers."""
    return gallery.pictures([name])[name]


PICTURES: Mapping[str, Callable[[], Any]] = {
    "accuracy": causes,
    "replication": replication,
    "reach": reach,
    "largest_weight": largest_weight,
    "refits": refits,
    "needle_accuracy": needle,
    "needle_mass": lambda: probed.mass_chart(table("needle/mass"), MASS),
    "minilm_entropy": lambda: probed.entropy_chart(table("minilm")),
    "critical": lambda: critical_report.rules_chart(table("critical/choices"), table("critical/accuracy")),
    "extremes": lambda: extremes_report.growth_chart(table("extremes/betas")),
    "clrs_text": lambda: clrs_report.regimes_chart(table("clrs_text/regimes")),
    "clrs_text_heads": lambda: clrs_report.heads_chart(table("clrs_text/heads")),
    "trained_or_swapped": lambda: trained_or_swapped_report.chart(table("trained_or_swapped/accuracy")),
    **of_precision(),
    **of_frontier(),
    **{f"normalizers/{name}": functools.partial(of_normalizer, name) for name in METHODS},
}
"""How the chart of each picture is made, by its name."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Pictures to draw, such as accuracy or normalizers/ssmax; all by default."""
    output: Path = DOCS / "images"
    """Directory for the pictures, as SVG."""

    def __post_init__(self) -> None:
        for name in self.names:
            one_of("NAME", name, PICTURES)
        check_directory("--output", self.output)


def main() -> None:
    """Draws and writes."""
    asked = parse(Arguments, description=__doc__)
    names = asked.names or tuple(PICTURES)
    with one_line_errors():
        for name in names:
            write_whole(asked.output / f"{name}.svg", svg(PICTURES[name](), readers=True))
    print(f"drew {len(names)} pictures into {asked.output}")


if __name__ == "__main__":
    main()
