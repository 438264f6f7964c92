"""Weights within programs that compute the logits too, as a compiler sees them in every model."""

import pytest

from .fused_programs import ALL, BY_COMPARISON, FORMS, MASKS, PRODUCERS, as_if_on_another_machine, check

DENSE_FIRST = pytest.mark.full, pytest.mark.rare
FULL = {("soft cap", "dense")}
some_producers = pytest.mark.parametrize(
    "producer",
    [pytest.param(name, marks=DENSE_FIRST[name != "soft cap"]) for name in PRODUCERS],
)


def tier(producer, form):
    """Some programs of all methods are in the full tier; the others, which share their code, are rare."""
    return pytest.param(producer, form, marks=DENSE_FIRST[(producer, form) not in FULL])


def test_some_methods_weigh_as_if_the_logits_were_there_already():
    check({name: ALL[name] for name in ("adaptive", "hardmax", "top_k")}, "soft cap")


@pytest.mark.parametrize(("producer", "form"), [tier(producer, form) for producer in PRODUCERS for form in FORMS])
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
    ran = as_if_on_another_machine(SCRIPT.format(producers=["gelu chain", "soft cap"], forms=["dense"]))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.rare
def test_all_forms_hold_where_the_compiler_fuses_more():
    ran = as_if_on_another_machine(SCRIPT.format(producers="PRODUCERS", forms="FORMS"))
    assert ran.returncode == 0, ran.stderr
