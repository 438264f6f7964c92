"""Optimizers and schedules from their texts: the names, numbers and chains of optax as one would write them in Python.

`chain(clip_by_global_norm(1.0), adamw(weight_decay=0.001))` builds what `optax.chain(...)` of the same would, with the
schedule of the learning rate put in where one is taken. A text holds calls of functions in optax or in optax.contrib,
and numbers.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from softmax_jax.experiment.training.config import Config
from softmax_jax.normalizers.checks import did_you_mean, expression, shown
from softmax_jax.refusal import Refusal

OPTIMIZERS = {name: value for name, value in (vars(optax.contrib) | vars(optax)).items() if inspect.isfunction(value)}
SCHEDULES = {name: value for name, value in vars(optax.schedules).items() if re.fullmatch("[a-z].*_schedule", name)}
RATES = ("learning_rate", "value", "peak_value")
"""Numbers that would contradict --learning-rate."""


def build_schedule(config: Config) -> optax.Schedule:
    """Returns the learning rate by step. Raises Refusal for a schedule that optax lacks or that lacks a number."""
    rate, steps = float(config.learning_rate), config.steps

    def rates_and_lengths(parameters: Mapping[str, Any]) -> dict[str, Any]:
        start = 0.0 if "peak_value" in parameters else rate  # a schedule with a peak warms up to it
        values = {"value": rate, "init_value": start, "peak_value": rate, "decay_steps": steps}
        return {name: value for name, value in (values | {"transition_steps": steps}).items() if name in parameters}

    return _build("--schedule", config.schedule, SCHEDULES, rates_and_lengths, config.schedule_options)


def build_optimizer(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns the optimizer at a schedule.

    Raises Refusal for one that optax lacks, for an unknown option, and for one that cannot take a step from a
    gradient only.
    """

    def learning_rate(parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {"learning_rate": schedule} if "learning_rate" in parameters else {}

    optimizer = _build("--optimizer", config.optimizer, OPTIMIZERS, learning_rate, config.optimizer_options)
    if problem := _problem_of_a_step(optimizer):
        raise Refusal(
            f"--optimizer is {config.optimizer}: with its options it must take a step from a gradient only, and says: "
            f"{problem}; choose another, such as adam"
        )
    return optimizer


def _build(
    option: str,
    text: str,
    functions: Mapping[str, Any],
    given: Callable[[Mapping[str, Any]], dict[str, Any]],
    options: Mapping[str, float],
) -> Any:
    """Calls the functions that a text names.

    Arguments:
        option: The option of the command line that holds the text, for messages.
        text: Calls of the functions, such as `chain(clip_by_global_norm(1.0), adam)`.
        functions: What the text may name.
        given: The arguments that the program gives to a function, by the function's parameters.
        options: Further numbers for the functions that are given any.

    Raises:
        Refusal: if the text is no such call, or a function refuses its numbers.
    """
    try:
        tree = expression(text)
    except Refusal:
        example = "chain(clip_by_global_norm(1.0), adam)"
        raise Refusal(
            f"{option} is {shown(text)}: it must be a name of optax or calls of such, as in {example}"
        ) from None
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    for name in names:
        if name not in functions:
            known = ", ".join(functions) if functions is SCHEDULES else "such as adam or sgd"
            raise Refusal(f"{option} is {text}: {did_you_mean(name, functions)}it must be one of optax, {known}")
    if not any(given(inspect.signature(functions[name]).parameters) for name in names):
        raise Refusal(f"{option} is {text}: it must be one of optax that takes a learning rate, such as adam")

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return call(name, [], {})
            case ast.Call(ast.Name(name), positional, keywords):
                named = {str(keyword.arg): value(keyword.value) for keyword in keywords}
                return call(name, [value(argument) for argument in positional], named)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise Refusal(f"{option} is {text}: it must hold names of optax and numbers only") from None

    def call(name: str, positional: list[Any], named: dict[str, Any]) -> Any:
        parameters = inspect.signature(functions[name]).parameters
        arguments = given(parameters)
        numbers = (dict(options) if arguments else {}) | named
        if arguments and (rates := [number for number in numbers if number in RATES]):
            raise Refusal(f"{option} is {text}: its {rates[0]} must be given as --learning-rate, so leave it out")
        try:
            return functions[name](*positional, **(arguments | numbers))
        except (ValueError, TypeError, ArithmeticError) as error:  # of optax, about numbers that somebody gave
            near = "".join(did_you_mean(number, parameters) for number in numbers if number not in parameters)
            takes = f"{name} takes {', '.join(parameters)}"
            raise Refusal(
                f"{option} is {text}: {' '.join(str(error).split())}; {near}{takes}; give numbers by name"
            ) from None

    return value(tree)


def _problem_of_a_step(optimizer: optax.GradientTransformation) -> str | None:
    """Returns what goes wrong in a step of this optimizer as the loop takes it; nothing is computed."""

    def step(parameters: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(parameters, optimizer.init(parameters), parameters)[0]

    like = {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32), "bias": jax.ShapeDtypeStruct((2,), jnp.float32)}
    try:
        jax.eval_shape(step, like)
    except Exception as error:  # of many types, as optimizers ask for arguments that the loop does not have
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None
