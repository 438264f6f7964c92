"""The settings of a training run: what a preset fills in and a command line may change."""

import dataclasses
import math


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
    """So many sets are drawn for each that a batch keeps: those whose two largest ρ are nearest. 1 keeps all."""
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
        counts = ("steps", "seeds", "sets", "min_items", "steps_per_batch", "nearest_of", "width", "chunk")
        counts += ("chunks_per_checkpoint",)
        for name in counts:
            _require(getattr(self, name) >= 1, self, name, "it must be at least 1")
        _require(0 <= self.first_seed < 2**31, self, "first_seed", "it must be at least 0 and below 2**31")
        _require(self.max_items >= self.min_items, self, "max_items", f"it must be at least min_items={self.min_items}")
        _require(
            self.nearest_of == 1 or self.min_items > 1,
            self,
            "nearest_of",
            "sets of one item (--min-items 1) have no tie: leave it at 1",
        )
        _require(math.isfinite(self.l2) and self.l2 >= 0, self, "l2", "it must be finite and at least 0")
        positive = math.isfinite(self.learning_rate) and self.learning_rate > 0
        _require(positive, self, "learning_rate", "it must be finite and above 0")


def _require(holds: bool, config: Config, name: str, rule: str) -> None:
    if not holds:
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option} is {getattr(config, name)}: {rule}")
