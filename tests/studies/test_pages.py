"""The page of a study has the tables that its kept data give; tests/docs says the same of the pictures."""

from collections.abc import Iterator

import polars as pl
import pytest

from docs.pictures import DOCS, table
from projects.clrs_text import study as clrs_text
from studies import ablation, critical, extremes, polynomial, precision, trained_or_swapped
from tests.tiers import full_except


def of_frontier() -> Iterator[str]:
    yield ablation.losses_table(table("frontier/losses"))
    data = DOCS / "data" / "critical"
    schemas = {"choices": critical.CHOICES, "betas": critical.BETAS, "accuracy": critical.ACCURACIES}
    choices, betas, accuracy = (pl.read_csv(data / f"{name}.csv", schema=schema) for name, schema in schemas.items())
    yield critical.choices_table(choices, accuracy)
    yield critical.rules_table(betas, accuracy)


def of_extremes() -> Iterator[str]:
    frame = pl.read_csv(DOCS / "data" / "extremes" / "betas.csv", schema=extremes.COLUMNS)
    yield extremes.growth_table(frame, 256)
    yield extremes.rules_table(frame, 256)


def of_precision() -> Iterator[str]:
    accuracy, ceilings, recipes, of_recipes = (
        table(f"precision_study/{name}") for name in ("accuracy", "ceilings", "recipes", "recipe_ceilings")
    )
    yield precision.cells_table(accuracy, ceilings)
    yield precision.recipes_table(recipes, of_recipes)


def of_swapped() -> Iterator[str]:
    frame = table("trained_or_swapped/accuracy")
    yield trained_or_swapped.accuracy_table(frame, table("trained_or_swapped/tests"))
    yield trained_or_swapped.lengths_table(frame)


def of_clrs_text() -> Iterator[str]:
    yield clrs_text.learned_table(table("clrs_text/regimes"))
    yield clrs_text.models_table(table("clrs_text/accuracy"))


def of_polynomial() -> Iterator[str]:
    for name in ("curves", "sensitivity"):
        yield polynomial.curves_table(table(f"polynomial/{name}"))
    yield polynomial.used_table(table("polynomial/used"))


PAGES = {
    "polynomial": of_polynomial,
    "frontier": of_frontier,
    "extremes": of_extremes,
    "precision_study": of_precision,
    "trained_or_swapped": of_swapped,
    "clrs_text": of_clrs_text,
}


@pytest.mark.parametrize("page", full_except(PAGES, "extremes"))
def test_the_page_has_the_tables_of_its_data(page: str):
    text = (DOCS / f"{page}.md").read_text()
    assert all(made in text for made in PAGES[page]())
