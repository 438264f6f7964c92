"""Every file of tests has one that runs by default."""

from tests.tiers import full_except, methods

OTHER_TIERS = {"full", "slow", "parity", "models", "gpu", "browser"}
OPTIONAL = {"parity", "models", "gpu", "browser"}
"""Folders of tests that need more than the requirements."""


def without_default(tests):
    """Files of which no test runs by default, of (file, marks)."""
    files = {path for path, _ in tests if path.name.startswith("test_") and path.parent.name not in OPTIONAL}
    return files - {path for path, marks in tests if OTHER_TIERS.isdisjoint(marks)}


def test_every_file_has_a_test_that_runs_by_default(collected):
    """Of the files that this session collects: all, unless some are named."""
    tests = [(item.path, {mark.name for mark in item.iter_markers()}) for item in collected]
    assert tests
    assert not without_default(tests), "mark the tests that can wait, and leave one that runs by default"


def test_a_file_without_one_is_named(request):
    here, other = request.path, request.path.with_name("test_other.py")
    tests = [(here, {"full"}), (here, set()), (other, {"full"}), (other, {"slow", "usefixtures"})]
    assert without_default(tests) == {other}


def test_parameters_that_are_not_named_wait():
    first, second = full_except([("a", 1), ("b", 2)], "b")
    assert [(one.values, len(one.marks)) for one in (first, second)] == [(("a", 1), 1), (("b", 2), 0)]
    assert first.marks[0].name == "full"
    assert [len(one.marks) for one in methods(["softmax", "hardmax", "hardmax(cap=3)"])] == [0, 1, 0]
