"""Tasks: the data and the model of each, side by side."""

import dataclasses
import importlib

from softmax_jax.experiment import REPOSITORY
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.user_modules import OF_A_MODULE, read_module
from softmax_jax.refusal import Refusal

TASKS = {
    "max_retrieval": "softmax_jax.experiment.tasks.max_retrieval:MaxRetrieval",
    "signal": "softmax_jax.experiment.tasks.hidden_signal:Signal",
    "transformer_max_retrieval": "softmax_jax.experiment.tasks.retrieval:TransformerMaxRetrieval",
    "sort": "softmax_jax.experiment.tasks.retrieval:Sort",
    "copy": "softmax_jax.experiment.tasks.retrieval:Copy",
    "multi_query": "softmax_jax.experiment.tasks.retrieval:MultiQuery",
    "set_complement": "softmax_jax.experiment.tasks.set_complement:SetComplement",
    "trigger": "softmax_jax.experiment.tasks.trigger:Trigger",
}
"""The module and class of every task by its name in config.json."""


def register_task(name: str, where: str) -> None:
    """Adds the task whose class is at `where`, a text such as `my_module:Task`, under a name.

    The module is imported when `task_class` is called.
    """
    TASKS[name] = where


def task_class(name: str) -> type[Task]:
    """Returns the class of a task: one of the table, or one of your own as `my_module:Task`, whose module it imports.

    Raises Refusal for a name that is not in the table, for a module that holds no such class, and for a class that
    lacks a member or is no dataclass.
    """
    if name in TASKS:
        module, _, attribute = TASKS[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if not OF_A_MODULE.fullmatch(name):
        rule = f"it must be one of {', '.join(TASKS)}; one of your own is written my_module:Task"
        studies = "" if REPOSITORY else ", and the tasks of studies need a checkout of the repository"
        raise Refusal(f"the task is {name!r}: {did_you_mean(name, TASKS)}{rule}{studies}")
    module, _, attribute = name.partition(":")
    task = read_module(module, f"the task is {name!r}").get(attribute)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise Refusal(f"the task is {name!r}: {module} must hold a class of that name that derives from Task")
    if lacking := sorted(getattr(task, "__abstractmethods__", ())):
        raise Refusal(f"the task is {name!r}: it lacks {', '.join(lacking)}: define what a task must have")
    if not dataclasses.is_dataclass(task):
        raise Refusal(f"the task is {name!r}: its class must be a dataclass: write @dataclass(frozen=True) above it")
    return task


def name_of(task: Task) -> str:
    """Returns the name of a task in config.json, by which `task_class` finds its class."""
    kind = type(task)
    where = f"{kind.__module__}:{kind.__qualname__}"
    return task.name if TASKS.get(task.name) == where else where
