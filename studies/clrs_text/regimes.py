"""What a model is tuned under: numbers of β for every head, and which of them train."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.experiment.training.trainer import Parameters
from softmax_jax.normalizers.parameters import number
from softmax_jax.normalizers.row import Row
from softmax_jax.normalizers.scales import EntropyPolynomial, LogLength, Scale

SWAPPED, TUNED = "swapped", "tuned"
NUMBERS = ("constant", "slope", "adaptive")


class HeadScale(Scale):
    """The inverse temperature β = constant + slope·log n + adaptive·β(H), which holds softmax, SSMax and `adaptive`."""

    constant: ArrayLike = number(default=1.0)
    slope: ArrayLike = number(default=0.0)
    adaptive: ArrayLike = number(default=0.0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        by_length, by_entropy = LogLength(s=1.0).of_row(row), EntropyPolynomial().of_row(row)
        return row.number(self.constant) + row.number(self.slope) * by_length + row.number(self.adaptive) * by_entropy


class Regime(NamedTuple):
    """The numbers of every head before tuning, and the one that trains, if any."""

    constant: float
    slope: float
    adaptive: float
    learned: str = ""

    def data(self) -> tuple[Float[np.ndarray, " numbers"], Bool[np.ndarray, " numbers"]]:
        """Returns the numbers and which of them train, as a program takes them."""
        return np.array(self[:3], np.float32), np.array([name == self.learned for name in NUMBERS])


SOFTMAX = "softmax"
REGIMES = {
    SOFTMAX: Regime(1.0, 0.0, 0.0),
    "adaptive": Regime(0.0, 0.0, 1.0),
    "ssmax": Regime(0.0, 1 / math.log(16), 0.0, "slope"),
    "constant": Regime(1.0, 0.0, 0.0, "constant"),
    "sharp_constant": Regime(1.5, 0.0, 0.0, "constant"),
}
"""SSMax starts at its registered s, where β is 1 for 16 entries. The sharp constant starts at SSMax's β for 64."""


def data_of(regimes: Sequence[str]) -> tuple[Float[np.ndarray, "models numbers"], Bool[np.ndarray, "models numbers"]]:
    """Returns the numbers of each regime and which of them train, as a program takes them for many models."""
    values, learned = zip(*(REGIMES[name].data() for name in regimes))
    return np.stack(values), np.stack(learned)


def with_head_numbers(
    parameters: Parameters,
    heads: int,
    values: Float[Array, " numbers"],
    learned: Bool[Array, " numbers"] | None = None,
) -> Parameters:
    """Returns the parameters of one model with these numbers in each head; numbers that are learned stay."""

    def number_of(block: Any, index: int) -> Float[Array, "heads 1 1"]:
        value = jnp.broadcast_to(values[index], (heads, 1, 1))
        return value if learned is None else jnp.where(learned[index], block["attention"][NUMBERS[index]], value)

    blocks = {
        layer: block | {"attention": {name: number_of(block, index) for index, name in enumerate(NUMBERS)}}
        for layer, block in parameters["blocks"].items()
    }
    return parameters | {"blocks": blocks}
