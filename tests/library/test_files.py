import json
import os
from pathlib import Path

import pytest

from softmax_jax import files
from softmax_jax.refusal import Refusal


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
    with pytest.raises(Refusal, match="disk full"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


BY_NAME = {
    "bytes": files.read_bytes,
    "text": files.read_text,
    "json": files.read_json,
    "names": lambda path: files.read_json(path, "steps"),
    "sha256": lambda path: files.sha256_of(path, 2**30),
}
BAD = {
    "absent": ("No such file or directory", set(BY_NAME)),
    "directory": ("is a directory: it must be a regular file", set(BY_NAME)),
    "latin": ("UTF-8|utf-8", {"text", "json", "names"}),
    "torn": ("cannot be read as JSON", {"json", "names"}),
    "deep": ("nested too deeply", {"json", "names"}),
    "number": ("lacks steps", {"names"}),
    "list": ("lacks steps", {"names"}),
}


@pytest.mark.parametrize(("kind", "reader"), [(kind, one) for kind in BAD for one in BY_NAME])
def test_a_bad_file_is_refused_where_it_is_read_in_one_line_with_its_name(kind, reader, tmp_path):
    path, (words, refused_by) = tmp_path / "x.json", BAD[kind]
    content = {
        "latin": b'{"a": "\xe4"}',
        "torn": b'{"a": 1',
        "deep": 10**6 * b"[",
        "number": b"1",
        "list": b'["steps"]',
    }
    if kind == "directory":
        path.mkdir()
    elif kind in content:
        path.write_bytes(content[kind])
    if reader not in refused_by:
        BY_NAME[reader](path)
        return
    with pytest.raises(Refusal, match=rf"^[^\n]*({words})[^\n]*$") as refused:
        BY_NAME[reader](path)
    assert str(refused.value).startswith(str(path))


def test_text_has_the_lines_of_any_system(tmp_path):
    (tmp_path / "x").write_bytes("ä\r\nb\n".encode())
    assert files.read_text(tmp_path / "x") == "ä\nb\n"


def test_a_path_that_cannot_be_looked_at_written_or_made_is_refused(tmp_path):
    long = tmp_path / ("x" * 300)
    uses = (files.exists, files.make_directory, lambda path: files.append_lines(path, ["a"]), files.remove_directory)
    for use in uses:
        with pytest.raises(Refusal, match=rf"{long} cannot be .*: File name too long"):
            use(long)
    assert not files.exists(tmp_path / "x")


def test_what_json_lacks_is_null(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [float("nan"), 1.5], "b": (float("inf"), "NaN")})
    assert json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail) == {
        "a": [None, 1.5],
        "b": [None, "NaN"],
    }


GATES = (files.read_bytes, files.read_text, files.read_json)


@pytest.mark.parametrize("read", GATES)
def test_only_a_regular_file_of_bounded_size_is_read(read, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path, problem in {
        tmp_path / "fifo": "is a FIFO: it must be a regular file",
        tmp_path / "link": "is a FIFO: it must be a regular file",
        tmp_path: "is a directory: it must be a regular file",
        Path("/dev/zero"): "is a device: it must be a regular file",
        tmp_path / "large": "has 1,099,511,627,776 bytes: a file of its kind may have at most ",
        tmp_path / "absent": "cannot be read: No such file or directory",
        tmp_path / "loop": "cannot be read: Too many levels of symbolic links",
        tmp_path / ("x" * 300): "cannot be read: File name too long",
    }.items():
        with pytest.raises(Refusal) as refusal:
            read(path)
        assert str(refusal.value).startswith(f"{path} {problem}")
        assert str(refusal.value).endswith("name another")
    with pytest.raises(Refusal, match=r"'a\\x00b' is no name of a file"):
        read("a\0b")


def test_a_file_that_grows_while_it_is_read_or_hides_its_size_is_bounded(tmp_path):
    assert os.stat("/proc/self/status").st_size == 0  # so the size alone bounds nothing
    with pytest.raises(Refusal, match="has more than 10 bytes: a file of its kind may have at most 10"):
        files.read_bytes("/proc/self/status", 10)
    (tmp_path / "ten").write_bytes(b"0123456789")
    assert files.read_bytes(tmp_path / "ten", 10) == b"0123456789"
    with pytest.raises(Refusal, match="has 10 bytes: a file of its kind may have at most 9"):
        files.read_bytes(tmp_path / "ten", 9)


def test_no_descriptor_is_left_of_what_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(Refusal):
            files.read_bytes(path)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "cannot be read as JSON: 'utf-8' codec can't decode"),
        (b'{"a": 1', "cannot be read as JSON: Expecting ',' delimiter"),
        (b"[" * 10**5, "cannot be read as JSON: it is nested too deeply"),
        (b"1" * 10**4, "cannot be read as JSON: Exceeds the limit"),
        (b"", "cannot be read as JSON: Expecting value"),
    ],
)
def test_what_is_no_json_is_refused_by_the_name_of_its_file(content, problem, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(Refusal, match=r"^[^\n]+$") as refusal:
        files.read_json(tmp_path / "file")
    assert str(refusal.value).startswith(f"{tmp_path}/file {problem}")


def test_a_text_is_in_utf_8_and_its_lines_end_as_python_has_them(tmp_path):
    (tmp_path / "text").write_bytes("ä\r\nb\rc\n".encode())
    assert files.read_text(tmp_path / "text") == "ä\nb\nc\n"
    (tmp_path / "text").write_bytes("ä".encode("latin-1"))
    with pytest.raises(Refusal, match=r"text cannot be read as text: 'utf-8' codec .*; write it in UTF-8"):
        files.read_text(tmp_path / "text")
