"""The pictures of the documentation are those that their data give."""

import pytest

from docs.pictures import DOCS, PICTURES
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.drawing import drawn_from, fingerprint

IMAGES = DOCS / "images"


def test_there_is_a_picture_of_each_name_and_no_other():
    assert {str(path.relative_to(IMAGES))[: -len(".svg")] for path in IMAGES.rglob("*.svg")} == set(PICTURES)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in PICTURES if name.split("/")[-1] not in METHODS])
def test_a_picture_is_drawn_from_what_the_code_makes_of_the_data(name):
    kept = drawn_from((IMAGES / f"{name}.svg").read_text())
    assert kept == fingerprint(PICTURES[name]()), f"run python -m docs.pictures {name}"
