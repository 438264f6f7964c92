"""Weights within programs that compute the logits too, as a compiler sees them in every model."""

import pytest

from .fused_programs import ALL, BY_COMPARISON, FORMS, MASKS, PRODUCERS, as_if_on_another_machine, check

DENSE_FIRST = pytest.mark.full, pytest.mark.rare
some_producers = pytest.mark.parametrize(
    "producer",
    [pytest.param(name, marks=DENSE_FIRST[name != "soft cap"]) for name in PRODUCERS],
)


def test_some_methods_weigh_as_if_the_logits_were_there_already():
    check({name: ALL[name] for name in ("adaptive", "hardmax", "top_k")}, "soft cap")


@pytest.mark.rare
def test_every_map_weighs_as_if_the_logits_were_there_already():
    check({type(normalizer.map).__name__: normalizer for normalizer in ALL.values()}, "soft cap")


@pytest.mark.rare
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("form", FORMS)
def test_every_method_weighs_as_if_the_logits_were_there_already(producer, form):
    check(ALL, producer, form)


@some_producers
def test_comparisons_hold_wherever_the_logits_are_computed(producer):
    check(BY_COMPARISON, producer)


@pytest.mark.rare
@pytest.mark.parametrize("form", [form for form in FORMS if form != "dense"])
def test_comparisons_hold_in_every_form(form):
    for producer in PRODUCERS:
        check(BY_COMPARISON, producer, form)


@some_producers
def test_masks_hold_wherever_the_logits_are_computed(producer):
    check(MASKS, producer)


SCRIPT = """
from tests.library.normalizers.fused_programs import BY_COMPARISON, FORMS, MASKS, PRODUCERS, check
for producer in {producers}:
    check(MASKS, producer)
    for form in {forms}:
        check(BY_COMPARISON, producer, form)
"""


@pytest.mark.rare
def test_comparisons_hold_where_the_compiler_fuses_more():
    ran = as_if_on_another_machine(SCRIPT.format(producers="PRODUCERS", forms="FORMS"))
    assert ran.returncode == 0, ran.stderr
