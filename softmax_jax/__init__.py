"""Understand, test and replace softmax in attention."""

import importlib
import types
import typing

from softmax_jax.attention.attention import dot_product_attention as dot_product_attention
from softmax_jax.laws.checker import check as check
from softmax_jax.normalizers.calculus import (
    cross_entropy as cross_entropy,
    log_softmax as log_softmax,
    soft_cross_entropy as soft_cross_entropy,
    softmax_jacobian as softmax_jacobian,
    softmax_jvp as softmax_jvp,
    softmax_vjp as softmax_vjp,
    weight_entropy as weight_entropy,
)
from softmax_jax.normalizers.maps import (
    Entry as Entry,
    Map as Map,
    clipped_softmax as clipped_softmax,
    elastic_softmax as elastic_softmax,
    first_token_softmax as first_token_softmax,
    hardmax as hardmax,
    scaled_signed_averaging as scaled_signed_averaging,
    shifted_softmax as shifted_softmax,
    sigmoid as sigmoid,
    signed_l1 as signed_l1,
    sink_softmax as sink_softmax,
    soft_cap as soft_cap,
    softmax as softmax,
    softmax1 as softmax1,
    softmax_n as softmax_n,
    softpick as softpick,
)
from softmax_jax.normalizers.methods import (
    adaptive_temperature_softmax as adaptive_temperature_softmax,
    length_scaled_softmax as length_scaled_softmax,
    scalable_softpick as scalable_softpick,
    ssmax as ssmax,
    temperature_softmax as temperature_softmax,
)
from softmax_jax.normalizers.naming import name_bad_rows as name_bad_rows
from softmax_jax.normalizers.normalizer import Normalizer as Normalizer
from softmax_jax.normalizers.parameters import number as number
from softmax_jax.normalizers.registry import METHODS as METHODS, normalizer as normalizer, register as register
from softmax_jax.normalizers.row import Row as Row, entropy as entropy
from softmax_jax.normalizers.sampling import (
    gumbel_softmax as gumbel_softmax,
    min_p_mask as min_p_mask,
    sample as sample,
    straight_through as straight_through,
    top_k_mask as top_k_mask,
    top_p_mask as top_p_mask,
)
from softmax_jax.normalizers.scales import (
    ClippedLogLength as ClippedLogLength,
    ConstantTemperature as ConstantTemperature,
    EntropyInterpolation as EntropyInterpolation,
    EntropyPolynomial as EntropyPolynomial,
    GatedLogLength as GatedLogLength,
    InverseTemperature as InverseTemperature,
    LengthRatio as LengthRatio,
    LengthRule as LengthRule,
    LogLength as LogLength,
    LogLengthPower as LogLengthPower,
    LogPosition as LogPosition,
    Scale as Scale,
    SqrtLogLength as SqrtLogLength,
)
from softmax_jax.normalizers.segments import segments as segments
from softmax_jax.normalizers.sparse import (
    entmax as entmax,
    entmax15 as entmax15,
    sparsemax as sparsemax,
    stieltjes as stieltjes,
    top_k_softmax as top_k_softmax,
)
from softmax_jax.refusal import MissingPackage as _MissingPackage
from softmax_jax.transforms.calibrate import calibrate as calibrate
from softmax_jax.transforms.from_torch import from_torch as from_torch
from softmax_jax.transforms.probe import probe as probe
from softmax_jax.transforms.sites import sites as sites
from softmax_jax.transforms.swap import swap as swap

if typing.TYPE_CHECKING:
    from softmax_jax.attention.flax_layers import (
        LinenAttention as LinenAttention,
        NnxAttention as NnxAttention,
        attention_fn as attention_fn,
    )
    from softmax_jax.display import show as show

__version__ = "0.4.0"

_FROM_EXTRAS = {
    "LinenAttention": ("flax", "softmax_jax.attention.flax_layers"),
    "NnxAttention": ("flax", "softmax_jax.attention.flax_layers"),
    "attention_fn": ("flax", "softmax_jax.attention.flax_layers"),
    "show": ("experiment", "softmax_jax.display"),
}
"""Names that are loaded when they are asked for: the extra that they need, and their module."""


_LOADED = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, types.ModuleType)]
__all__ = [*_LOADED, *_FROM_EXTRAS]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> typing.Any:
    if name not in _FROM_EXTRAS:
        raise AttributeError(f"module 'softmax_jax' has no attribute {name!r}")
    extra, module = _FROM_EXTRAS[name]
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise _MissingPackage(f"softmax_jax.{name}", error.name, f"'softmax-jax[{extra}]'") from None
    globals()[name] = value
    return value
