"""The drawing library ends its own process alone."""

import altair as alt
import pytest

from softmax_jax.experiment.report import chart_files, charts, drawing
from softmax_jax.experiment.report.drawing import Drawer
from softmax_jax.refusal import Refusal

SPEC = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a", "type": "quantitative"}}}
DYING = """
import os, signal, sys
sys.stdin.buffer.readline()
os.kill(os.getpid(), signal.SIGTRAP)
"""


@pytest.fixture
def drawer():
    drawer = Drawer()
    yield drawer
    drawer.end()


def test_calls_go_to_one_process_which_shows_the_traceback_of_a_defect_and_is_ended_at_last(drawer):
    assert drawer.call("vegalite_to_svg", SPEC).startswith("<svg")
    first = drawer.process
    with pytest.raises(RuntimeError, match="vegalite_to_svg failed:\nTraceback"):
        drawer.call("vegalite_to_svg", {"mark": 3})
    assert drawer.call("vegalite_to_svg", SPEC).startswith("<svg")
    assert drawer.process is first
    drawer.end()
    assert first.returncode == 0


def test_a_crash_of_the_library_is_one_line_with_the_place_of_the_data_and_the_next_call_draws(
    drawer, tmp_path, monkeypatch
):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.setattr(chart_files, "draw", drawer.call)
    chart = alt.layer(alt.Chart(alt.Data(values=[])).mark_point()).properties(title=charts.chart_title("x"))
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "DRAWER", tmp_path / "dying.py")
        with pytest.raises(Refusal, match=r"^[^\n]+$") as refused:
            chart_files.save_chart(chart, tmp_path / "accuracy")
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/accuracy.png is not drawn, and its data are in {tmp_path}: ")
    assert "was ended by SIGTRAP, as under a limit of virtual memory (ulimit -v)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["dying.py"]
    chart_files.save_chart(chart, tmp_path / "accuracy")
    assert (tmp_path / "accuracy.svg").exists()
