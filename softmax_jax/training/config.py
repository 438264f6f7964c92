"""The settings of a training run: what a preset fills in and a command line may change."""

import dataclasses
from typing import Any

from softmax_jax.normalizers.checks import finite, require, shown, whole


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of one training run of the max-retrieval model."""

    steps: int = 100_000
    """Training steps of every seed."""
    seeds: int = 1
    """Models to train at once, with the seeds `first_seed`, `first_seed` + 1, …"""
    first_seed: int = 0
    """Seed of the first model. Parameters and data of a model depend on its seed alone."""
    sets: int = 128
    """Sets per batch."""
    min_items: int = 5
    """Fewest items of a set. All sets of a batch have the same number, drawn uniformly."""
    max_items: int = 16
    """Most items of a set."""
    steps_per_batch: int = 1
    """Steps that reuse a batch before a new one is drawn."""
    nearest_of: int = 1
    """So many draws are made of each set, and the one kept whose two largest ρ are nearest. 1 keeps all."""
    width: int = 128
    """Width of every layer."""
    normalizer: str = "softmax"
    """Normalizer of the attention in training, with numbers where wanted, as in `temperature(0.5)`."""
    l2: float = 0.001
    """λ of the penalty λ·Σw² over all parameters, added to the cross-entropy."""
    optimizer: str = "adam"
    """Name of any optimizer in optax, such as adam, adamw or sgd."""
    optimizer_options: dict[str, float] = dataclasses.field(default_factory=dict)
    """Further numbers for the optimizer, as in `weight_decay 0.0001`."""
    learning_rate: float = 0.001
    """Learning rate: the value of a constant schedule, the start or the peak of the others."""
    schedule: str = "constant_schedule"
    """Name of any schedule in optax, such as constant_schedule, cosine_decay_schedule, cosine_onecycle_schedule."""
    schedule_options: dict[str, float] = dataclasses.field(default_factory=dict)
    """Further numbers for the schedule, as in `alpha 0.1`; its length is `steps` unless given."""
    chunk: int = 500
    """Steps per call of the compiled loop, and so per line of metrics."""
    chunks_per_checkpoint: int = 10
    """Chunks between checkpoints."""

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            whole(_option(name), getattr(self, name), least, _default(name), most)
        _require(self.max_items >= self.min_items, self, "max_items", f"it must be at least min_items={self.min_items}")
        ties = self.nearest_of == 1 or self.min_items > 1
        _require(ties, self, "nearest_of", "sets of one item (--min-items 1) have no tie, so it must be 1")
        last = self.first_seed + self.seeds - 1
        _require(last < 2**31, self, "first_seed", f"the last of {self.seeds} seeds must be below 2**31, and is {last}")
        require("--l2", self.l2, "of at least 0 and at most 1000, such as 0.001", lambda l2: 0 <= l2 <= 1000)
        rule = "above 0 and at most 1000, such as 0.001"
        require("--learning-rate", self.learning_rate, rule, lambda rate: 0 < rate <= 1000)
        for name in ("optimizer", "schedule"):
            named = isinstance(getattr(self, name), str)
            _require(named, self, name, f"it must be a name of optax, such as {_default(name)}", TypeError)
            self._check_numbers(f"{name}_options")
        named = isinstance(self.normalizer, str)
        _require(named, self, "normalizer", "it must be the name of a normalizer, such as softmax", TypeError)

    def _check_numbers(self, name: str) -> None:
        """Raises unless these are finite numbers by name."""
        options = getattr(self, name)
        rule = "it must be numbers by name, such as {'weight_decay': 0.1}"
        _require(
            isinstance(options, dict) and all(isinstance(key, str) for key in options), self, name, rule, TypeError
        )
        for key, value in options.items():
            finite(f"{_option(name)} {key}", value)


BOUNDS: dict[str, tuple[int, int]] = {
    "steps": (1, 2**31 - 1),
    "seeds": (1, 2**16),
    "first_seed": (0, 2**31 - 1),
    "sets": (1, 2**20),
    "min_items": (1, 2**20),
    "max_items": (1, 2**20),
    "steps_per_batch": (1, 2**31 - 1),
    "nearest_of": (1, 2**10),
    "width": (1, 2**14),
    "chunk": (1, 2**31 - 1),
    "chunks_per_checkpoint": (1, 2**31 - 1),
}
"""The least and the most of each count: steps and seeds are int32 on the device, and sizes beyond fill any memory."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default(name: str) -> Any:
    return getattr(Config, name)


def _require(holds: bool, config: Config, name: str, rule: str, error: type[Exception] = ValueError) -> None:
    if not holds:
        raise error(f"{_option(name)} is {shown(getattr(config, name))}: {rule}")
