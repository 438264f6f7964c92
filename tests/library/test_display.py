import re
from html.parser import HTMLParser

import numpy as np
import pytest
from flax import nnx

import softmax_jax as sj
from softmax_jax.experiment.tasks.retrieval_model import MaxRetrievalModel

WEIGHTS = np.linspace(0, 1, 24).reshape(2, 3, 4)


@pytest.mark.full
def test_a_model_is_shown_with_its_parameters_and_an_array_with_its_axes_and_places(tmp_path):
    page = sj.show(MaxRetrievalModel(8, rngs=nnx.Rngs(0)), tmp_path / "deep" / "model.html")
    parts = ("<!doctype html>", "<title>MaxRetrievalModel</title>", "attention_query", "float32(11, 8)", "arrayviz")
    assert all(part in page.read_text() for part in parts)
    assert [path.name for path in page.parent.iterdir()] == ["model.html"]
    axes, labels = ("normalizer", "set", "item"), {"normalizer": ("softmax", "hardmax")}
    text = sj.show(WEIGHTS, tmp_path / "weights.html", axes=axes, labels=labels, limits=(0.0, 1.0)).read_text()
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?https?:", text)
    assert all(name in text for name in ("normalizer: 2", "softmax", "hardmax", "set: 3", "item: 4"))


@pytest.mark.full
def test_names_that_do_not_fit_leave_no_page(tmp_path):
    for message, options in {
        "give 3 different names": {"axes": ("a", "b", "b")},
        "'d' is no axis: the axes are a, b, c": {"axes": ("a", "b", "c"), "columns": ("d",)},
        "has 1 names for 2 places": {"axes": ("a", "b", "c"), "labels": {"a": ("one",)}},
    }.items():
        with pytest.raises(ValueError, match=message):
            sj.show(WEIGHTS, tmp_path / "page.html", **options)
    assert not list(tmp_path.iterdir())


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
        tags = []  # each with what follows it
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attrs, tags=tags: tags.append(tag)
        parser.handle_data = lambda data, tags=tags: tags.append(tags[-1] + data) if tags else None
        parser.feed(text)
        assert "img" not in tags
        assert not any(tag.startswith("scripthurt") for tag in tags)
    assert "default-src 'none'" in page
