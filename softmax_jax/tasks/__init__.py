"""Tasks: the data and the model of each, side by side."""

import importlib
from pathlib import Path

from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.registry import OF_A_MODULE, content_of
from softmax_jax.refusal import Refusal
from softmax_jax.tasks.task import Task

TASKS = {
    "max_retrieval": "softmax_jax.tasks.max_retrieval:MaxRetrieval",
    "signal": "softmax_jax.tasks.signal:Signal",
    "transformer_max_retrieval": "softmax_jax.tasks.retrieval:TransformerMaxRetrieval",
    "sort": "softmax_jax.tasks.retrieval:Sort",
    "copy": "softmax_jax.tasks.retrieval:Copy",
    "multi_query": "softmax_jax.tasks.retrieval:MultiQuery",
    "clrs_text": "projects.clrs_text.task:ClrsText",
}
"""Where the class of every task of this repository is, by the name that config.json knows it by."""
_ROOT = Path(__file__).parents[2]


def task_class(name: str) -> type[Task]:
    """Returns the class of a task: one of the table, or one of your own as `my_module:Task`, whose module it imports.

    Raises ValueError for a name that is not in the table, for a module that holds no such class, and for a task that
    stands beside the package where only the package is installed.
    """
    if name not in TASKS and not OF_A_MODULE.fullmatch(name):
        known = f"it must be one of {', '.join(TASKS)}; one of your own is written my_module:Task"
        raise Refusal(f"the task is {name!r}: {did_you_mean(name, TASKS)}{known}")
    module, _, attribute = TASKS.get(name, name).partition(":")
    if name in TASKS:
        if module.startswith("projects.") and not in_repository():
            where = "which is in the repository and not in the installed package"
            raise Refusal(f"the task {name} stands in projects/, {where}: run this in a checkout of the repository")
        return getattr(importlib.import_module(module), attribute)
    found = content_of(module, f"the task is {name!r}").get(attribute)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise Refusal(f"the task is {name!r}: {module} must hold a class of that name that derives from Task")
    return found


def in_repository() -> bool:
    """Says whether the package stands in its repository, beside the tasks in projects/, or is installed by itself."""
    return (_ROOT / "projects").is_dir()


def name_of(task: Task) -> str:
    """Returns the name of a task in config.json, by which `task_class` finds its class."""
    kind = type(task)
    own = f"{kind.__module__}:{kind.__qualname__}"
    return task.name if TASKS.get(task.name) == own else own
