"""The page of a study, and the CSV files beside its data, have what its kept data give; tests/docs has the pictures."""

from collections.abc import Callable, Iterator

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from benchmarks.segments import times_table
from docs.pictures import DOCS, table
from studies import (
    ablation,
    critical,
    dilution_tables,
    extremes,
    factorial,
    front_tables,
    neighbours,
    polynomial,
    precision,
    pretrained_tables,
    trained_or_swapped,
)
from studies.clrs_text import page as clrs_text
from tests.tiers import full_except

CRITICAL = {"choices": critical.CHOICES, "betas": critical.BETAS, "accuracy": critical.ACCURACIES}


def of_critical() -> list[pl.DataFrame]:
    data = DOCS / "data" / "critical"
    return [pl.read_csv(data / f"{name}.csv", schema=schema) for name, schema in CRITICAL.items()]


def of_recipes() -> Iterator[str]:
    yield ablation.losses_table(table("frontier/losses"))


def betas_of_extremes() -> pl.DataFrame:
    return pl.read_csv(DOCS / "data" / "extremes" / "betas.csv", schema=extremes.COLUMNS)


def of_sharpness() -> Iterator[str]:
    _, betas, accuracy = of_critical()
    yield critical.rules_table(critical.rules_frame(betas, accuracy))
    yield extremes.growth_table(extremes.growth_frame(betas_of_extremes(), 256))
    yield dilution_tables.dilution_table(dilution_tables.learned(table("dilution/cells")))


def of_reproduction() -> Iterator[str]:
    accuracy, ceilings = (table(f"precision_study/{name}") for name in ("accuracy", "ceilings"))
    yield precision.cells_table(accuracy, ceilings)
    yield precision.nulls_table(accuracy)
    yield precision.gains_table(precision.gains(accuracy))
    yield factorial.factorial_table(table("factorial/accuracy"))
    yield polynomial.criteria_table(table("polynomial/curves"))


def of_language_models() -> Iterator[str]:
    yield pretrained_tables.losses_table(table("pretrained/losses"))
    yield pretrained_tables.needles_table(table("pretrained/needles"))
    yield front_tables.front_table(table("front/answers"), table("front/losses"))
    yield clrs_text.contrasts_table(clrs_text.contrasts(table("clrs_text/answers")))


def of_graphs() -> Iterator[str]:
    yield neighbours.neighbours_table(table("neighbours/accuracy"))
    yield times_table(table("scaling/segments"))


PAGES = {
    "graphs": of_graphs,
    "reproduction": of_reproduction,
    "sharpness": of_sharpness,
    "recipes": of_recipes,
    "language_models": of_language_models,
}


@pytest.mark.parametrize("page", full_except(PAGES, "sharpness"))
def test_the_page_has_the_tables_of_its_data(page: str):
    text = (DOCS / f"{page}.md").read_text()
    assert all(made in text for made in PAGES[page]())


DERIVED: dict[str, Callable[[], pl.DataFrame]] = {
    "critical/rules": lambda: critical.rules_frame(*of_critical()[1:]),
    "trained_or_swapped/tests": lambda: trained_or_swapped.compared(table("trained_or_swapped/accuracy")),
    "clrs_text/contrasts": lambda: clrs_text.contrasts(table("clrs_text/answers")),
    "clrs_text/swapped": lambda: clrs_text.swapped_losses(table("clrs_text/answers")),
    "critical/near_ties": lambda: critical.choices_frame(*of_critical()[::2]),
    "extremes/growth": lambda: extremes.growth_frame(betas_of_extremes(), 256),
    "precision_study/gains": lambda: precision.gains(table("precision_study/accuracy")),
    "extremes/rules": lambda: extremes.off_by(betas_of_extremes(), "half", 256),
}


@pytest.mark.parametrize("name", full_except(DERIVED, "critical/rules"))
def test_a_table_kept_as_a_file_is_what_the_data_give(name: str):
    made = DERIVED[name]()
    assert_frame_equal(pl.read_csv(DOCS / "data" / f"{name}.csv", schema=made.schema), made, rel_tol=1e-9)
