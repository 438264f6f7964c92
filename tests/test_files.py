import json

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


READERS = {
    "bytes": files.read_bytes,
    "text": files.read_text,
    "json": files.read_json,
    "names": lambda path: files.read_json(path, "steps"),
    "sha256": files.sha256_of,
}
BAD = {
    "absent": ("No such file or directory", set(READERS)),
    "directory": ("Is a directory", set(READERS)),
    "latin": ("UTF-8|utf-8", {"text", "json", "names"}),
    "torn": ("cannot be read as JSON", {"json", "names"}),
    "deep": ("nested too deeply", {"json", "names"}),
    "number": ("lacks steps", {"names"}),
    "list": ("lacks steps", {"names"}),
}


@pytest.mark.parametrize(("kind", "reader"), [(kind, one) for kind in BAD for one in READERS])
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
        READERS[reader](path)
        return
    with pytest.raises(Refusal, match=rf"^[^\n]*({words})[^\n]*$") as refused:
        READERS[reader](path)
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
