"""Tasks: the data and the model of each, side by side."""


from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.retrieval import Copy, MultiQuery, Sort, TransformerMaxRetrieval
from softmax_jax.tasks.signal import Signal
from softmax_jax.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (MaxRetrieval, Signal, TransformerMaxRetrieval, Sort, Copy, MultiQuery)
}
"""Every task by the name that config.json knows it by."""
