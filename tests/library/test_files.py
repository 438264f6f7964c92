import contextlib
import json
import os
from pathlib import Path

import pytest

from softmax_jax import files
from softmax_jax.refusal import Refusal


def test_a_file_is_written_whole_or_stays(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file.json"
    for number in (1, 2):
        files.write_json(path, {"a": number})
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(Refusal, match="disk full"):
        files.write_json(path, {"a": 3})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


READERS = {
    "bytes": files.read_bytes,
    "text": files.read_text,
    "json": files.read_json,
    "names": lambda path: files.read_json(path, "steps"),
    "sha256": lambda path: files.sha256_of(path, 2**30),
}
CONTENTS = {
    b'{"a": "\xe4"}': ("UTF-8|utf-8", {"text", "json", "names"}),
    b'{"a": 1': ("cannot be read as JSON: Expecting ',' delimiter", {"json", "names"}),
    b"": ("cannot be read as JSON: Expecting value", {"json", "names"}),
    10**6 * b"[": ("nested too deeply", {"json", "names"}),
    10**4 * b"1": ("Exceeds the limit", {"json", "names"}),
    b"1": ("lacks steps", {"names"}),
    b'["steps"]': ("lacks steps", {"names"}),
}


@pytest.mark.parametrize("reader", READERS)
def test_bad_content_is_refused_where_it_is_read_in_one_line_with_its_file(reader, tmp_path):
    path = tmp_path / "x.json"
    for content, (problem, refused_by) in CONTENTS.items():
        path.write_bytes(content)
        refused = pytest.raises(Refusal, match=rf"^{path}.*({problem}).*$")
        with refused if reader in refused_by else contextlib.nullcontext():
            READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_only_a_regular_file_of_bounded_size_is_read_and_no_descriptor_is_left(reader, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    open_before = os.listdir("/proc/self/fd")
    for name, problem in {
        "fifo": "is a FIFO: it must be a regular file",
        "link": "is a FIFO: it must be a regular file",
        "": "is a directory: it must be a regular file",
        "/dev/zero": "is a device: it must be a regular file",
        "large": "has 1,099,511,627,776 bytes: a file of its kind may have at most ",
        "absent": "cannot be read: No such file or directory",
        "loop": "cannot be read: Too many levels of symbolic links",
        "x" * 300: "cannot be read: File name too long",
    }.items():
        path = tmp_path / name
        with pytest.raises(Refusal, match=rf"^{path} {problem}.*name another$"):
            READERS[reader](path)
    with pytest.raises(Refusal, match=r"'a\\x00b' is no name of a file"):
        READERS[reader](Path("a\0b"))
    assert os.listdir("/proc/self/fd") == open_before


def test_a_path_that_cannot_be_looked_at_written_or_made_is_refused(tmp_path):
    long = tmp_path / ("x" * 300)
    uses = (files.exists, files.make_directory, lambda path: files.append_lines(path, ["a"]), files.remove_directory)
    for use in uses:
        with pytest.raises(Refusal, match=rf"{long} cannot be .*: File name too long"):
            use(long)
    assert not files.exists(tmp_path / "x")


def test_what_json_lacks_is_null_and_lines_of_a_text_end_as_python_has_them(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [float("nan"), 1.5], "b": (float("inf"), "NaN")})
    written = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert written == {"a": [None, 1.5], "b": [None, "NaN"]}
    (tmp_path / "text").write_bytes("ä\r\nb\rc\n".encode())
    assert files.read_text(tmp_path / "text") == "ä\nb\nc\n"


def test_a_file_that_grows_while_it_is_read_or_hides_its_size_is_bounded(tmp_path):
    assert os.stat("/proc/self/status").st_size == 0  # so the size alone bounds nothing
    with pytest.raises(Refusal, match="has more than 10 bytes: a file of its kind may have at most 10"):
        files.read_bytes("/proc/self/status", 10)
    (tmp_path / "ten").write_bytes(b"0123456789")
    assert files.read_bytes(tmp_path / "ten", 10) == b"0123456789"
    with pytest.raises(Refusal, match="has 10 bytes: a file of its kind may have at most 9"):
        files.read_bytes(tmp_path / "ten", 9)
