"""Understand, test and replace softmax in attention."""

from softmax_jax.attention.dense import dot_product_attention
from softmax_jax.attention.flax import LinenAttention, NnxAttention, attention_fn
from softmax_jax.normalizers.maps import (
    hardmax,
    shift_invariant,
    shifted_softmax,
    signed_l1,
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
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer, register
from softmax_jax.normalizers.scales import (
    ConstantTemperature,
    EntropyPolynomial,
    LengthRule,
    LogLength,
    Scale,
    entropy,
    scale,
)
from softmax_jax.normalizers.sparse import entmax, entmax15, sparsemax, stieltjes, top_k_softmax

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "ConstantTemperature",
    "EntropyPolynomial",
    "LengthRule",
    "LinenAttention",
    "LogLength",
    "NnxAttention",
    "Normalizer",
    "Scale",
    "adaptive_temperature_softmax",
    "attention_fn",
    "dot_product_attention",
    "entmax",
    "entmax15",
    "entropy",
    "hardmax",
    "length_scaled_softmax",
    "normalizer",
    "register",
    "scalable_softpick",
    "scale",
    "shift_invariant",
    "shifted_softmax",
    "signed_l1",
    "softmax",
    "softmax1",
    "softpick",
    "sparsemax",
    "ssmax",
    "stieltjes",
    "temperature_softmax",
    "top_k_softmax",
]
