"""The settings of a training run: what a preset fills in and a command line may change."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from softmax_jax.experiment.tasks import name_of, task_class
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.files import exists, read_json
from softmax_jax.normalizers.checks import did_you_mean, finite, require, shown, whole
from softmax_jax.normalizers.registry import imported_for, require_fit_within
from softmax_jax.normalizers.user_modules import named_module, require_trust, trust
from softmax_jax.refusal import Refusal

NumbersByName = Annotated[dict[str, float], tyro.conf.arg(help_behavior_hint="")]
"""Numbers by name, none unless given."""
DROPPED = {"sharded": False, "positions": 0}
"""Settings of earlier versions, each with the one value that still means the same run."""
RENAMED = {"sets": "batch"}
"""Settings of earlier versions by their old names."""
LARGEST_CONFIG = 2**20
"""The most bytes of a config.json."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of one training run: of the task with its data and model, and of how it is trained."""

    task: Task = dataclasses.field(default_factory=MaxRetrieval)
    """Data and model, each with its sizes."""
    steps: int = 100_000
    """Training steps of every seed."""
    seeds: int = 1
    """Models to train at once, with the seeds `first_seed`, `first_seed` + 1, …"""
    first_seed: int = 0
    """Seed of the first model. Parameters and data of a model depend on its seed alone."""
    normalizer: str = "softmax"
    """Normalizer of the attention in training, with numbers where wanted, as in `temperature(0.5)`; your own as
    `my_module:relu`."""
    l2: float = 0.001
    """λ of the penalty λ·Σw² over all parameters, added to the cross-entropy."""
    optimizer: str = "adam"
    """An optimizer as optax or optax.contrib writes it, such as adam, muon, `adamw(weight_decay=0.001)` or a chain of
    their transformations: `chain(clip_by_global_norm(1.0), adam)`. Whatever takes a learning rate is given the
    schedule."""
    optimizer_options: NumbersByName = dataclasses.field(default_factory=dict)
    """Further numbers for the optimizer, as in `weight_decay 0.0001`."""
    learning_rate: float = 0.001
    """Learning rate: the value of a constant schedule, the peak of those that warm up, the start of the others."""
    schedule: str = "constant_schedule"
    """A schedule as optax writes it, such as constant_schedule, cosine_decay_schedule, cosine_onecycle_schedule,
    `warmup_cosine_decay_schedule(warmup_steps=500)`."""
    schedule_options: NumbersByName = dataclasses.field(default_factory=dict)
    """Further numbers for the schedule, as in `alpha 0.1`; its length is `steps` unless given."""
    start_from: str = ""
    """Directory of a run whose trained models these start from, instead of random ones. Numbers that only
    this normalizer learns start as they always do, and the batches of that run do not come again."""
    first_batch: int = 0
    """Batches of the training data to leave out: by default those that the models of `start_from` have seen."""
    chunk: int = 500
    """Steps per call of the compiled loop, and so per line of metrics."""
    chunks_per_checkpoint: int = 10
    """Chunks between checkpoints."""

    def __post_init__(self) -> None:
        """Raises Refusal for settings that make no run."""
        for name, (least, most) in BOUNDS.items():
            whole(f"--{name.replace('_', '-')}", getattr(self, name), least, getattr(Config, name), most)
        last = self.first_seed + self.seeds - 1
        if last >= 2**31:
            rule = f"the last of {self.seeds} seeds must be below 2**31, and is {last}"
            raise Refusal(f"--first-seed is {self.first_seed}: {rule}")
        require("--l2", self.l2, "of at least 0 and at most 1000, such as 0.001", lambda l2: 0 <= l2 <= 1000)
        rule = "above 0 and at most 1000, such as 0.001"
        require("--learning-rate", self.learning_rate, rule, lambda rate: 0 < rate <= 1000)
        for option in ("optimizer_options", "schedule_options"):
            for key, value in getattr(self, option).items():
                finite(f"--{option.replace('_', '-')} {key}", value)
        trust(name_of(self.task))  # its module is imported already, so a file of this run may name it

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of the models."""
        return list(range(self.first_seed, self.first_seed + self.seeds))


BOUNDS: dict[str, tuple[int, int]] = {
    "steps": (1, 2**31 - 1),
    "seeds": (1, 2**16),
    "first_seed": (0, 2**31 - 1),
    "first_batch": (0, 2**30),
    "chunk": (1, 2**31 - 1),
    "chunks_per_checkpoint": (1, 2**31 - 1),
}
"""The least and the most of each count: steps and seeds are int32 on the device."""


def settings_of(config: Config) -> dict[str, Any]:
    """Returns the settings by name, those of the task among them, as config.json holds them.

    >>> settings_of(Config(MaxRetrieval(width=8)))["width"]
    8
    """
    settings = dataclasses.asdict(config)
    return {"task": name_of(config.task)} | settings.pop("task") | settings


def from_settings(settings: Mapping[str, Any]) -> Config:
    """Returns the settings that `settings_of` was given; what is left out has its default, and the task is max
    retrieval. Names of earlier versions are read too.

    >>> from_settings({"sets": 8}).task.batch
    8

    Raises Refusal for an unknown setting, for a value of another type than the default's, and as `task_class`.
    """
    name = settings.get("task", MaxRetrieval.name)
    if not isinstance(name, str):
        raise Refusal(f"task is {shown(name)}; it must be a text, as {MaxRetrieval.name!r}")
    kind = task_class(name)
    fields = {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    given = {name: value for name, value in settings.items() if name != "task" and (name, value) not in DROPPED.items()}
    defaults = settings_of(Config(kind()))
    given = {name if name in defaults else RENAMED.get(name, name): value for name, value in given.items()}
    for setting, value in list(given.items()):
        if setting not in defaults:
            unknown = setting if setting.isidentifier() else shown(setting)
            raise Refusal(f"{unknown} is no setting of {name}: {did_you_mean(setting, defaults)}leave it out")
        given[setting] = _in_type_of(defaults[setting], setting, value)
    task = kind(**{name: value for name, value in given.items() if name in fields})
    return Config(task, **{name: value for name, value in given.items() if name not in fields})


def _in_type_of(default: Any, setting: str, value: Any) -> Any:
    """Returns the value of a setting in the type of its default. Raises Refusal for one of another type."""
    rule = f"of the type of {shown(default)}"
    match default:
        case tuple():
            value = tuple(value) if isinstance(value, list) else value  # as JSON has them
            kinds = {type(part) for part in default}
            fits = isinstance(value, tuple) and (not kinds or kinds.issuperset(map(type, value)))
        case dict():
            rule = "a number by each name"
            fits = isinstance(value, dict) and all(
                name.isidentifier() and type(number) in (int, float) for name, number in value.items()
            )
        case float():
            fits = type(value) in (int, float)
        case _:
            fits = type(value) is type(default)
    if not fits:
        raise Refusal(f"{setting} is {shown(value)}; it must be {rule}")
    return value


def changed(config: Config, **settings: Any) -> Config:
    """Returns the config with other settings, of the task or of the training.

    >>> changed(Config(), width=8, steps=10).task.width
    8
    """
    return from_settings(settings_of(config) | settings)


def read_config(directory: Path | str, run: Path | str | None = None) -> Config:
    """Returns the settings of the run in a directory, or of its checkpoint there, where `run` is the run's directory.

    Raises Refusal, in one line, if there is none, it cannot be read, or it names code or a fit outside of the run. A
    normalizer or a task can be somebody's own; optimizer and schedule are those of optax.
    """
    path = Path(directory) / "config.json"
    if not exists(path):
        raise Refusal(f"{directory} holds no run (no config.json): name a directory that train.py made")
    settings = read_json(path, limit=LARGEST_CONFIG)
    if not isinstance(settings, dict):
        raise Refusal(f"{path} is not the config of a run: it must hold settings by name, and holds {shown(settings)}")
    for setting, module_of in {"normalizer": imported_for, "task": named_module}.items():
        text = str(settings.get(setting))
        require_trust(text, module_of(text), path)
    try:
        config = from_settings(settings)
        require_fit_within(config.normalizer, Path(run or directory))
        return config
    except Refusal as refusal:
        raise no_config(path, refusal) from None


def no_config(path: Path, refusal: Refusal) -> Refusal:
    """Returns the refusal of a config.json with settings that make no run."""
    return Refusal(f"{path} is not the config of a run: {refusal}")
