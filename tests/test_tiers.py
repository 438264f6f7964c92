"""Every file of tests has one that runs by default."""


def test_every_file_has_a_test_that_runs_by_default(collected):
    """Of the files that this session collects: all, unless some are named."""
    files = {item.path for item in collected if item.path.name.startswith("test_")}
    by_default = {
        item.path for item in collected if {"full", "rare"}.isdisjoint(mark.name for mark in item.iter_markers())
    }
    assert not files - by_default, "mark the tests that can wait, and leave one that runs by default"
