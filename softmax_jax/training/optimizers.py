"""Optimizers and schedules from their texts: the names, numbers and chains of optax as one would write them in Python.

`chain(clip_by_global_norm(1.0), adamw(weight_decay=0.001))` builds what `optax.chain(...)` of the same would, with the
schedule of the learning rate put in where one is taken. A text holds calls of functions in optax or in optax.contrib,
and numbers.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from softmax_jax.normalizers.checks import did_you_mean, expression, shown
from softmax_jax.training.config import Config

RATES = {"--schedule": {"value", "peak_value"}, "--optimizer": {"learning_rate"}}
"""Numbers of a text that would contradict --learning-rate."""
OPTIMIZERS = {name: value for name, value in (vars(optax.contrib) | vars(optax)).items() if inspect.isfunction(value)}
ELEMENTWISE = {"chain", "clip_by_global_norm", "adam", "adamw", "sgd"}
"""Those that change each number of the parameters without a look at its place in them."""
Given = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From the parameters of a function to the arguments that it is given besides those in the text."""


def build_schedule(config: Config) -> optax.Schedule:
    """The learning rate by step. Raises ValueError for a schedule that optax lacks or that lacks a number."""
    known = [name for name in dir(optax.schedules) if name.endswith("_schedule") and not name.startswith("_")]
    names = _names("--schedule", config.schedule)
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise ValueError(f"--schedule is {config.schedule}: {near}it must be one of optax, {', '.join(known)}")

    _check_rate("--schedule", config.schedule_options)

    def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
        rate = float(config.learning_rate)
        start = 0.0 if "peak_value" in parameters else rate  # one with a peak warms up to it
        rates = {"value": rate, "init_value": start, "peak_value": rate}
        values = rates | {"decay_steps": config.steps, "transition_steps": config.steps}
        return {name: value for name, value in values.items() if name in parameters} | config.schedule_options

    return _built("--schedule", config.schedule, vars(optax.schedules), given)


def build_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimizer at its schedule.

    Raises ValueError for one that optax lacks, for an unknown option, and for one that cannot take a step from a
    gradient alone.
    """
    names = _names("--optimizer", config.optimizer)
    unknown = [name for name in names if name not in OPTIMIZERS]
    if unknown or not any("learning_rate" in _parameters(name) for name in names):
        near = "".join(did_you_mean(name, OPTIMIZERS) for name in unknown)
        rule = "it must be one of optax that takes a learning rate, as adam"
        raise ValueError(f"--optimizer is {config.optimizer}: {near}{rule}")
    _check_rate("--optimizer", config.optimizer_options)

    def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
        at_schedule = {"learning_rate": build_schedule(config)} | config.optimizer_options
        return at_schedule if "learning_rate" in parameters else {}

    optimizer = _built("--optimizer", config.optimizer, OPTIMIZERS, given)
    if problem := _problem_of_a_step(optimizer):
        raise ValueError(
            f"--optimizer is {config.optimizer}: with its options it must take a step from a gradient alone, and says: "
            f"{problem}; choose another, as adam"
        )
    return optimizer


def elementwise(config: Config) -> bool:
    """Whether the optimizer takes the same step on all parameters as one vector, but for rounding."""
    return set(_names("--optimizer", config.optimizer)) <= ELEMENTWISE


def _check_rate(option: str, numbers: Mapping[str, Any]) -> None:
    """Raises ValueError for a rate among the numbers of an option."""
    for rate in numbers.keys() & RATES[option]:
        raise ValueError(f"{option}-options has {rate} {numbers[rate]}: it must be given as --learning-rate")


def _parameters(name: str) -> Mapping[str, Any]:
    return inspect.signature(OPTIMIZERS[name]).parameters


def _parsed(option: str, text: str) -> ast.expr:
    try:
        return expression(text)
    except ValueError:
        example = "chain(clip_by_global_norm(1.0), adam)"
        raise ValueError(
            f"{option} is {shown(text)}: it must be a name of optax or calls of such, as in {example}"
        ) from None


def _names(option: str, text: str) -> list[str]:
    """The functions that are called in a text."""
    return [node.id for node in ast.walk(_parsed(option, text)) if isinstance(node, ast.Name)] or [text]


def _built(option: str, text: str, functions: Mapping[str, Any], given: Given) -> Any:
    """What the calls in a text come to."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return call(node, [], {})
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {str(keyword.arg): value(keyword.value) for keyword in node.keywords}
            return call(node.func, [value(argument) for argument in node.args], named)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(f"{option} is {text}: it must hold names of optax and numbers alone") from None

    def call(name: ast.Name, arguments: list[Any], named: dict[str, Any]) -> Any:
        factory = functions[name.id]
        parameters = inspect.signature(factory).parameters
        for rate in named.keys() & RATES[option]:
            raise ValueError(f"{option} is {text}: its {rate} must be given as --learning-rate, so leave it out")
        named = given(parameters) | named
        try:
            inspect.signature(factory).bind(*arguments, **named)
        except TypeError as error:
            near = "".join(did_you_mean(name, parameters) for name in named if name not in parameters)
            takes = f"{factory.__name__} takes {', '.join(parameters)}"
            raise ValueError(f"{option} is {text}: {error}; {near}{takes}; give numbers by name") from None
        try:
            return factory(*arguments, **named)
        except (ValueError, TypeError, ArithmeticError) as error:
            said = " ".join(str(error).split())
            raise ValueError(
                f"{option} is {text}: {factory.__name__} says {said}; give others, or more --steps"
            ) from None

    return value(_parsed(option, text))


@functools.lru_cache(maxsize=8)
def _problem_of_a_step(optimizer: optax.GradientTransformation) -> str | None:
    """What goes wrong in a step of this optimizer as the loop takes it; nothing is computed."""

    def step(parameters: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(parameters, optimizer.init(parameters), parameters)[0]

    like = {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32), "bias": jax.ShapeDtypeStruct((2,), jnp.float32)}
    try:
        jax.eval_shape(step, like)
    except Exception as error:  # of many types, as optimizers ask for arguments that the loop does not have
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None
