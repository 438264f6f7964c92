"""The pictures of the documentation are those that their data give."""

import pytest

import softmax_jax as sj
from docs.pictures import DOCS, PICTURES
from softmax_jax.experiment.report.chart_files import drawn_from, fingerprint, specification
from tests.tiers import full_except

IMAGES = DOCS / "images"
CURRENT = [
    name for name in PICTURES if name.split("/")[-1] not in sj.METHODS or name.endswith(("/ssmax", "/signed_l1"))
]


def test_there_is_a_picture_of_each_name_and_no_other():
    assert {str(path.relative_to(IMAGES))[: -len(".svg")] for path in IMAGES.rglob("*.svg")} == set(PICTURES)
    assert {name.split("/")[1] for name in PICTURES if name.startswith("normalizers/")} == set(sj.METHODS)


@pytest.mark.parametrize("name", full_except(CURRENT, "extremes"))
def test_a_picture_is_drawn_from_what_the_code_makes_of_the_data(name):
    kept = drawn_from((IMAGES / f"{name}.svg").read_text())
    assert kept == fingerprint(specification(PICTURES[name]())), f"run python -m docs.pictures {name}"
