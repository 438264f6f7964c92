import json
import os
import subprocess
import sys

import pytest

from softmax_jax import files


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "deep" / "file.json"
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    files.write_whole(path, "old")

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


PRINTING = """
import sys
from pathlib import Path
from softmax_jax.files import print_to_the_end
print_to_the_end()
print("\u03bb" * 10_000, flush=True)
Path(sys.argv[1]).touch()
print("more")
"""


def printed(tmp_path, stdout, **environment):
    """What goes to stderr, where a program prints to this and then writes a file, which it must come to."""
    command = [sys.executable, "-c", PRINTING, tmp_path / "written"]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True)
    assert done.returncode == 0
    assert (tmp_path / "written").exists()
    return done.stderr


def test_what_nobody_reads_stops_no_work(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    assert printed(tmp_path, writer) == ""
    os.close(writer)


def test_what_a_terminal_lacks_is_replaced(tmp_path):
    with (tmp_path / "said").open("wb") as file:
        assert printed(tmp_path, file, LC_ALL="C", PYTHONIOENCODING="ascii") == ""
    assert (tmp_path / "said").read_text() == "?" * 10_000 + "\nmore\n"


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_what_a_full_disk_loses_is_said(tmp_path):
    with open("/dev/full", "wb") as file:
        said = printed(tmp_path, file)
    assert said.startswith("warning: what is printed gets lost from here on: No space left on device")
