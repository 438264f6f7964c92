"""What is measured of losses and heads, on small random arrays."""

from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import softmax_jax as sj
from softmax_jax.experiment.commands.calibration import calibrate
from softmax_jax.experiment.language_models.decoder import hidden
from softmax_jax.experiment.language_models.measures import (
    HEAD_MEASURES,
    LOSS_COLUMNS,
    bins,
    entropy_slopes,
    head_measures,
    loss_rows,
    paired_losses,
)
from softmax_jax.experiment.language_models.torch_model import TorchModel
from softmax_jax.refusal import Refusal
from tests.experiment.language_models.plain_llama import tiny_arrays
from tests.experiment.language_models.test_decoder import SIZES, TOKENS, as_parameters


@pytest.mark.full
def test_head_measures_are_means_of_the_rows_of_each_bin():
    parameters, edges = as_parameters(tiny_arrays(50)), (8, 24)
    found = head_measures(parameters, jnp.asarray(TOKENS[None]), SIZES, edges)
    assert found.keys() == set(HEAD_MEASURES)
    _, (rows,) = sj.probe(lambda tokens: hidden(parameters, SIZES, tokens))(jnp.asarray(TOKENS))
    for name in ("entropy", "spread", "log_sum_exp"):
        by_hand = getattr(rows, name)
        np.testing.assert_allclose(found[name][0, ..., 0], by_hand[..., :7].mean(-1), rtol=1e-5)
        np.testing.assert_allclose(found[name][0, ..., 1], by_hand[..., 7:].mean(-1), rtol=1e-5)
    assert float(found["first_norm"].min()) > 0


def test_slopes_and_paired_losses_are_those_of_the_rows():
    edges = (2, 4, 8, 16)
    x = [np.log(1 + np.flatnonzero(rows)).mean() for rows in bins(edges, 16)]
    frame = pl.DataFrame(
        {"text": "a", "layer": 0, "head": [0] * 4 + [1] * 4, "below": edges * 2, "entropy": x + [1.0] * 4}
    )
    np.testing.assert_allclose(entropy_slopes(frame, edges)["slope"], [1, 0], atol=1e-9)
    own = np.arange(14, dtype=np.float32).reshape(2, 7)
    rows = [
        *loss_rows("softmax", "a", own, (4, 8)),
        *loss_rows("other", "a", own + np.array([[1], [3]], np.float32), (4, 8)),
    ]
    cost = paired_losses(pl.DataFrame(rows, LOSS_COLUMNS, orient="row")).filter(normalizer="other")
    assert cost["below"].to_list() == [4, 8]
    np.testing.assert_allclose(cost["more"], 2)
    np.testing.assert_allclose(cost["half"], 12.706 * np.std([1, 3], ddof=1) / np.sqrt(2), rtol=1e-4)


def test_a_model_of_pytorch_is_refused_before_temperatures_are_learned(tmp_path):
    model = TorchModel("gpt2", {}, SIZES, cast(Any, None), dict, "{}")
    with pytest.raises(Refusal, match=r"--calibrate is for Llama, Mistral and Qwen2, and gpt2 runs in PyTorch: learn"):
        calibrate(model, "gpt2", [], tmp_path / "new", budget=0.01)
