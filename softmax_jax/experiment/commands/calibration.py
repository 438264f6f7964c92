"""Learns a temperature for each head of a language model, and bakes them into a copy of its files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from softmax_jax.experiment.commands.output import typed_path
from softmax_jax.experiment.language_models.baking import bake, find_queries
from softmax_jax.experiment.language_models.loading import path_of
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.experiment.language_models.temperatures import Learned, learn_temperatures
from softmax_jax.experiment.language_models.torch_model import TorchModel
from softmax_jax.files import LARGEST, exists, read_text, sha256_of
from softmax_jax.refusal import Refusal

THETA = "theta"
"""What can be learned and baked: a constant temperature for each head."""
LENGTH_KEYS = "attn_temperature_tuning and floor_scale of Llama 4, attn_scale of Mistral's and vLLM's configurations"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What to learn, from what, and where to."""

    model: str
    texts: Sequence[Path]
    what: str
    with_needles: bool
    budget: float
    length: int
    steps: int
    new: Path

    def __post_init__(self) -> None:
        if self.what != THETA:
            raise Refusal(
                f"--calibrate is {self.what!r}: only {THETA}, a constant for each head, can be written into weights; a "
                f"law of the length needs a program that has one ({LENGTH_KEYS}), or softmax_jax.swap"
            )
        if not 0 <= self.budget <= 1:
            raise Refusal(f"--budget is {self.budget}: it must be a share of the loss from 0 to 1, such as 0.01")
        if exists(self.new):
            raise Refusal(f"--bake is {self.new}, which is there already: name a new one")


def calibrate(calibration: Calibration, model: Model) -> str:
    """Learns, writes the new files, and returns the answer in sentences. Raises Refusal for a model of PyTorch."""
    if isinstance(model, TorchModel):
        raise Refusal(
            f"--calibrate is for Llama, Mistral and Qwen2, and {calibration.model} runs in PyTorch: learn numbers with "
            "softmax_jax.calibrate, and write them with softmax_jax.experiment.language_models.baking.bake"
        )
    find_queries(path_of(calibration.model))  # which refuses what cannot be baked before hours of learning
    texts = [model.encode(read_text(path)) for path in calibration.texts]
    settings = {name: getattr(calibration, name) for name in ("budget", "with_needles", "length", "steps")}
    learned = learn_temperatures(model, texts, **settings)
    made_by = settings | {
        "texts": {path.name: sha256_of(path, LARGEST) for path in calibration.texts},
        "text_loss": learned.text,
        "needle_loss": learned.needles,
    }
    error = bake(path_of(calibration.model), learned.theta, calibration.new, made_by)
    return sentences(calibration, learned, error)


def sentences(calibration: Calibration, learned: Learned, error: float) -> str:
    """Says what was learned, what it brings, what it costs, and what to do next."""
    layers, heads = learned.theta.shape
    sharper = int((learned.theta < 1).sum())
    rise = 100 * (learned.text[1] / learned.text[0] - 1)
    lines = [
        f"{sharper} of {layers * heads} heads became sharper: θ from {learned.theta.min():.2f} to "
        f"{learned.theta.max():.2f}, median {np.median(learned.theta):.2f}.",
        f"Text that was held out: {learned.text[0]:.3f} to {learned.text[1]:.3f} nats a token ({rise:+.2f} %, the "
        f"budget is {100 * calibration.budget:g} %).",
    ]
    if learned.needles:
        before, after = learned.needles
        lines.append(f"Hidden facts that were held out: the answer's loss goes from {before:.3f} to {after:.3f} nats.")
    if learned.kept < 1:
        lines.append(f"The budget allowed {100 * learned.kept:.0f} % of the logarithm of what was learned.")
    texts = " ".join(typed_path(path) for path in calibration.texts)
    return "\n".join(
        [
            *lines,
            f"wrote {typed_path(calibration.new)} (rounded by at most {100 * error:.2g} % of a number)",
            f"Next: softmax-jax language-model {typed_path(calibration.new)} --text {texts}",
        ]
    )
