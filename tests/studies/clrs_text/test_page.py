import polars as pl
import pytest

from docs.pictures import table
from softmax_jax.refusal import Refusal
from studies.clrs_text import page


def test_base_models_that_lack_a_regime_do_not_count():
    answers = table("clrs_text/answers").filter(pl.col("seed") < 3)
    part = answers.filter((pl.col("seed") < 2) | (pl.col("regime") != "constant"))
    assert set(page.contrasts(part)["models"]) == {2}


def test_a_directory_without_answers_is_named(tmp_path):
    with pytest.raises(Refusal, match=r"answers\.csv cannot be read: No such file or directory"):
        page.write(page.Arguments(data=tmp_path))
