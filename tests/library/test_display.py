import re
from html.parser import HTMLParser

import numpy as np
import pytest
from flax import nnx

import softmax_jax as sj
from softmax_jax.experiment.tasks.retrieval_model import MaxRetrievalModel

WEIGHTS = np.linspace(0, 1, 24).reshape(2, 3, 4)


@pytest.mark.full
def test_a_model_is_shown_with_its_parameters(tmp_path):
    page = sj.show(MaxRetrievalModel(8, rngs=nnx.Rngs(0)), tmp_path / "deep" / "model.html")
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    parts = ("<title>MaxRetrievalModel</title>", "attention_query", "float32(11, 8)", "arrayviz")
    assert all(part in text for part in parts)
    assert [path.name for path in page.parent.iterdir()] == ["model.html"]


@pytest.mark.full
def test_an_array_has_named_axes_and_places(tmp_path):
    axes, labels = ("normalizer", "set", "item"), {"normalizer": ("softmax", "hardmax")}
    path = tmp_path / "weights.html"
    text = sj.show(WEIGHTS, path, axes=axes, labels=labels, limits=(0.0, 1.0)).read_text()
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?https?:", text)
    assert all(name in text for name in ("normalizer: 2", "softmax", "hardmax", "set: 3", "item: 4"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": ("a", "b", "b")}, "give 3 different names"),
        ({"axes": ("a", "b", "c"), "columns": ("d",)}, "'d' is no axis: the axes are a, b, c"),
        ({"axes": ("a", "b", "c"), "labels": {"a": ("one",)}}, "has 1 names for 2 places"),
    ],
)
def test_names_that_do_not_fit_leave_no_page(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        sj.show(WEIGHTS, tmp_path / "page.html", **options)
    assert not list(tmp_path.iterdir())


class Tags(HTMLParser):
    """The tags of a page, and what its scripts are."""

    def __init__(self, page):
        super().__init__()
        self.names, self.scripts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)

    def handle_data(self, data):
        if self.names[-1:] == ["script"]:
            self.scripts.append(data)


HURT = "</script><script>hurt()</script><img src=x onerror=hurt()>"


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (WEIGHTS, {"axes": (HURT, "b", "c"), "labels": {HURT: (HURT, "y")}, "columns": (HURT,)}),
        ({HURT: WEIGHTS, "k": [HURT, {HURT: HURT}]}, {}),
        (type(HURT, (), {})(), {}),
    ],
)
def test_a_text_is_no_html(tmp_path, value, options):
    page = sj.show(value, tmp_path / "page.html", **options).read_text()
    for text in (page, sj.show(value, **options)._repr_html_()):
        tags = Tags(text)
        assert "img" not in tags.names
        assert not [script for script in tags.scripts if script.startswith("hurt")]
    assert "default-src 'none'" in page
