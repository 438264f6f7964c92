"""Understand, test and replace softmax in attention."""

import importlib
from typing import TYPE_CHECKING, Any

from softmax_jax.attention.dense import dot_product_attention
from softmax_jax.attention.fused import fused_attention
from softmax_jax.attention.streaming import sharded_attention, streaming_attention
from softmax_jax.normalizers.blocks import Block
from softmax_jax.normalizers.calculus import (
    cross_entropy,
    log_softmax,
    soft_cross_entropy,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
    weight_entropy,
)
from softmax_jax.normalizers.entry import Entry
from softmax_jax.normalizers.maps import (
    Map,
    Quotient,
    hardmax,
    shifted_softmax,
    signed_l1,
    sink_softmax,
    softmax,
    softmax1,
    softpick,
)
from softmax_jax.normalizers.methods import (
    adaptive_temperature_softmax,
    length_scaled_softmax,
    scalable_softpick,
    ssmax,
    temperature_softmax,
)
from softmax_jax.normalizers.naming import name_bad_rows
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.numbers import number
from softmax_jax.normalizers.registry import METHODS, normalizer, register
from softmax_jax.normalizers.rows import entropy
from softmax_jax.normalizers.sampling import gumbel_softmax, sample, straight_through, top_k_mask, top_p_mask
from softmax_jax.normalizers.scales import (
    ClippedLogLength,
    ConstantTemperature,
    EntropyInterpolation,
    EntropyPolynomial,
    InverseTemperature,
    LengthRule,
    LogLength,
    LogLengthPower,
    Scale,
)
from softmax_jax.normalizers.sparse import entmax, entmax15, sparsemax, stieltjes, top_k_softmax
from softmax_jax.normalizers.streaming import stream

if TYPE_CHECKING:
    from softmax_jax.attention.flax import LinenAttention, NnxAttention, NnxQueryTemperature, attention_fn
    from softmax_jax.report.show import show

__version__ = "0.2.0"

FROM_EXTRAS = {
    "LinenAttention": ("flax", "softmax_jax.attention.flax"),
    "NnxAttention": ("flax", "softmax_jax.attention.flax"),
    "NnxQueryTemperature": ("flax", "softmax_jax.attention.flax"),
    "attention_fn": ("flax", "softmax_jax.attention.flax"),
    "show": ("experiment", "softmax_jax.report.show"),
}
"""Names that are loaded when they are asked for: the extra that they need, and their module."""


def __getattr__(name: str) -> Any:
    if name not in FROM_EXTRAS:
        raise AttributeError(f"module 'softmax_jax' has no attribute {name!r}")
    extra, module = FROM_EXTRAS[name]
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"softmax_jax.{name} needs {error.name}, which is not installed: pip install 'softmax-jax[{extra}]'"
        ) from None
    globals()[name] = value
    return value


__all__ = [
    "METHODS",
    "Block",
    "ClippedLogLength",
    "ConstantTemperature",
    "EntropyInterpolation",
    "EntropyPolynomial",
    "Entry",
    "InverseTemperature",
    "LengthRule",
    "LinenAttention",
    "LogLength",
    "LogLengthPower",
    "Map",
    "NnxAttention",
    "NnxQueryTemperature",
    "Normalizer",
    "Quotient",
    "Scale",
    "adaptive_temperature_softmax",
    "attention_fn",
    "cross_entropy",
    "dot_product_attention",
    "entmax",
    "entmax15",
    "entropy",
    "fused_attention",
    "gumbel_softmax",
    "hardmax",
    "length_scaled_softmax",
    "log_softmax",
    "name_bad_rows",
    "normalizer",
    "number",
    "register",
    "sample",
    "scalable_softpick",
    "sharded_attention",
    "shifted_softmax",
    "show",
    "signed_l1",
    "sink_softmax",
    "soft_cross_entropy",
    "softmax",
    "softmax1",
    "softmax_jacobian",
    "softmax_jvp",
    "softmax_vjp",
    "softpick",
    "sparsemax",
    "ssmax",
    "stieltjes",
    "straight_through",
    "stream",
    "streaming_attention",
    "temperature_softmax",
    "top_k_mask",
    "top_k_softmax",
    "top_p_mask",
    "weight_entropy",
]
