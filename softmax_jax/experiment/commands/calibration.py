"""Learns a temperature for each head of a language model, and bakes them into a copy of its files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softmax_jax.experiment.commands.output import typed_path
from softmax_jax.experiment.language_models.baking import bake, find_queries
from softmax_jax.experiment.language_models.loading import path_of
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.temperatures import Learned, learn_temperatures
from softmax_jax.files import LARGEST, exists, read_text, sha256_of
from softmax_jax.refusal import Refusal

THETA = "theta"
"""What can be learned and baked: a constant temperature for each head."""
LENGTH_KEYS = "attn_temperature_tuning and floor_scale of Llama 4, attn_scale of Mistral's and vLLM's configurations"


def check_calibration(what: str, budget: float, new: Path) -> None:
    """Raises Refusal for what cannot be baked, for a budget that is no share, and for new files that are there."""
    if what != THETA:
        raise Refusal(
            f"--calibrate is {what!r}: only {THETA}, a constant for each head, can be written into weights; a law of "
            f"the length needs a program that has one ({LENGTH_KEYS}), or softmax_jax.swap"
        )
    if not 0 <= budget <= 1:
        raise Refusal(f"--budget is {budget}: it must be a share of the loss from 0 to 1, such as 0.01")
    if exists(new):
        raise Refusal(f"--bake is {new}, which is there already: name a new one")


def calibrate(model: Model, name: str, texts: Sequence[Path], new: Path, **settings: Any) -> str:
    """Learns by `learn_temperatures` with these settings, writes the new files, and returns the answer in sentences.

    Raises Refusal, before it learns, for a model of PyTorch and for one that cannot be baked.
    """
    model.check_learnable()
    find_queries(path_of(name))
    learned = learn_temperatures(model, [model.encode(read_text(path)) for path in texts], **settings)
    made_by = settings | {
        "texts": {path.name: sha256_of(path, LARGEST) for path in texts},
        "text_loss": learned.text,
        "needle_loss": learned.needles,
    }
    error = bake(path_of(name), learned.theta, new, made_by)
    wrote = f"wrote {typed_path(new)} (rounded by at most {100 * error:.2g} % of a number)"
    following = f"Next: softmax-jax language-model {typed_path(new)} --text {' '.join(map(typed_path, texts))}"
    return "\n".join([*sentences(learned, settings["budget"]), wrote, following])


def sentences(learned: Learned, budget: float) -> list[str]:
    """Says what was learned, what it costs, and what it brings."""
    layers, heads = learned.theta.shape
    sharper = int((learned.theta < 1).sum())
    rise = 100 * (learned.text[1] / learned.text[0] - 1)
    lines = [
        f"{sharper} of {layers * heads} heads became sharper: θ from {learned.theta.min():.2f} to "
        f"{learned.theta.max():.2f}, median {np.median(learned.theta):.2f}.",
        f"Text that was held out: {learned.text[0]:.3f} to {learned.text[1]:.3f} nats a token ({rise:+.2f} %, the "
        f"budget is {100 * budget:g} %).",
    ]
    if learned.needles:
        before, after = learned.needles
        lines.append(f"Hidden facts that were held out: the answer's loss goes from {before:.3f} to {after:.3f} nats.")
    if learned.kept < 1:
        lines.append(f"The budget allowed {100 * learned.kept:.0f} % of the logarithm of what was learned.")
    return lines
