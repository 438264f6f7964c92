"""The command of a study, as somebody types it."""

import pytest

from studies.common import start


@pytest.fixture
def typed(monkeypatch, capsys):
    """Runs the command of a study, in this process; returns what it prints."""

    def run(study, *words):
        monkeypatch.setattr("sys.argv", [study.__name__, *map(str, words)])
        capsys.readouterr()
        start(study.Arguments, "", study.study)
        return capsys.readouterr().out

    return run
