import polars as pl
import pytest

from softmax_jax.experiment.measures.frames import read_csv, read_json_lines
from softmax_jax.refusal import Refusal


def test_a_table_is_read_as_polars_reads_it(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,text\n1,0010\n")
    frame = read_csv(path, "n", schema_overrides={"text": pl.String})
    assert frame.rows() == [(1, "0010")]
    with pytest.raises(Refusal, match=r"x\.csv lacks the column seed, step: name another file"):
        read_csv(path, "n", "seed", "step")
    path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    assert read_json_lines(path, "step").rows() == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize("read", [read_csv, read_json_lines])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"\xff\xfe\xfa\n\x00\x01", "cannot be read"),
        (b'{"a": 1}\nnot\nthis,"', "cannot be read"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_table_is_refused_by_its_name(read, content, words, tmp_path):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    with pytest.raises(Refusal, match=rf"^{tmp_path}/x (cannot be read|lacks)[^\n]*$") as refused:
        read(tmp_path / "x", "n")
    assert words in str(refused.value) or "lacks the column n" in str(refused.value)
