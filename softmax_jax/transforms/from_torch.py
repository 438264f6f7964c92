"""`from_torch`: a PyTorch model as its weights and a JAX function, which `sites`, `swap`, `probe` and `calibrate` take.

torchax runs the model's own Python code with JAX arrays. What it needs of torch, JAX and transformers is set here.
"""

import contextlib
import importlib.metadata
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal, WrongType, require

INSTALL = "'softmax-jax[torch]'"
FITTING = {"torch": "2.13.0", "torchax": "0.0.13", "transformers": "5.24.0", "jax": "0.10.2"}
"""Versions that were tested together."""
PLAIN = {"set_attn_implementation": "eager", "set_experts_implementation": "batched_mm"}
"""The implementations of transformers that are plain programs of arrays: whole rows, and no choice by their values."""


def from_torch(model: Any) -> tuple[dict[str, Array], Callable[..., Any]]:
    """Returns the weights of a PyTorch model, and a JAX function that computes what the model computes.

    The function is called as `apply(weights, *arguments, **options)` with JAX arrays for tensors, and can be compiled,
    differentiated, and given to `sites`, `swap`, `probe` and `calibrate`. A model of transformers is set to its plain
    attention ("eager"), and its experts to "batched_mm".

    Arguments:
        model: A `torch.nn.Module` in evaluation mode, as `from_pretrained` returns it.

    Returns:
        The parameters and buffers by name, each tied weight once; and the function. Outputs of transformers come as
        dictionaries of their arrays; what is no array, as a cache, is left out.

    Raises:
        TypeError: `model` is no `torch.nn.Module`.
        ValueError: The model is in training mode, torchax does not fit the torch that is installed; and when the
            function is traced, the model has an operator that torchax lacks or chooses by the values of its arrays.
        ModuleNotFoundError: torch or torchax is not installed.

    Example:
        >>> import jax.numpy as jnp
        >>> import softmax_jax as sj
        >>> from transformers import AutoModelForCausalLM  # doctest: +SKIP
        >>> weights, apply = from_torch(AutoModelForCausalLM.from_pretrained("my_model"))  # doctest: +SKIP
        >>> logits = sj.swap(apply, "ssmax(s=0.4)")(weights, jnp.array([[1, 2, 3]]))["logits"]  # doctest: +SKIP
    """
    require("softmax_jax.from_torch", "torch", "torchax", install=INSTALL)
    import torch  # pyright: ignore[reportMissingImports]

    torchax = _import_torchax()
    if not isinstance(model, torch.nn.Module):
        raise WrongType(f"model is {checks.shown(model)}: it must be a torch.nn.Module, as from_pretrained returns it")
    if model.training:
        raise Refusal("model is in training mode, where dropout draws random numbers: call model.eval() first")
    for part, setting in itertools.product(model.modules(), PLAIN):
        if set_implementation := getattr(part, setting, None):
            set_implementation(PLAIN[setting])
    env, module = torchax.default_env(), _module_of_arrays(torchax, model)
    with _settings():
        weights = env.t2j_copy(module.params | module.buffers)

    def apply(weights: dict[str, Array], *args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, (args, kwargs)
        )
        with _settings(), _refusals(), env:
            tensors, args, kwargs = env.j2t_iso((weights, args, kwargs))
            output = module.functional_call(torch.nn.Module.__call__, tensors, {}, *args, **kwargs)
            return _arrays(env.t2j_iso(output))

    return weights, apply


def _module_of_arrays(torchax: Any, model: Any) -> Any:
    """Returns the module of torchax that calls a model with other tensors, which its `params` and `buffers` name."""
    from torch.nn.utils import parametrize  # pyright: ignore[reportMissingImports]

    module = torchax.interop.JittableModule(model)
    for name, part in model.named_modules():
        if parametrize.is_parametrized(part):  # torchax takes what is computed of parameters for a buffer
            for key in part.parametrizations:
                module.buffers.pop(f"{name}.{key}".removeprefix("."))
    return module


def _import_torchax() -> Any:
    """Imports torchax with all its operators. Raises Refusal if it does not fit the torch that is installed."""
    try:
        with _dropped_overloads():
            import torchax  # pyright: ignore[reportMissingImports]

            torchax.default_env()
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        installed = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torchax", "jax"))
        fitting = " ".join(f"{name}=={version}" for name, version in FITTING.items())
        raise Refusal(f"{installed} do not fit together ({error}): pip install {fitting}") from error
    return torchax


@contextlib.contextmanager
def _dropped_overloads() -> Iterator[None]:
    """Stands an object for each overload of named tensors, which torch dropped in 2.13 and torchax lists in its tables.

    No call can reach an overload that torch does not have, so its entry is never read.
    """
    import torch  # pyright: ignore[reportMissingImports]

    packet: Any = torch._ops.OpOverloadPacket
    original = packet.__getattr__

    def look_up(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if "dimname" in name.lower() or "names" in name.split("_"):
                return object()
            raise

    packet.__getattr__ = look_up
    try:
        yield
    finally:
        packet.__getattr__ = original


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Lets torchax promote types and ranks as torch does, and ask for the 64-bit integers that JAX makes 32-bit."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        yield


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Says in one line why torchax cannot run a model."""
    try:
        yield
    except Refusal:
        raise
    except jax.errors.ConcretizationTypeError as error:
        raise Refusal(
            "the model chooses what it computes by the values of its arrays, which no compiled function can "
            f"({_first_line(error)}): give it other options or another implementation"
        ) from error
    except Exception as error:
        if not _raised_by_torchax(error):
            raise
        version = importlib.metadata.version("torchax")
        raise Refusal(
            f"torchax {version} cannot run the model ({type(error).__name__}: {_first_line(error)}): check the shapes "
            "of its arguments, or choose another implementation of the layer"
        ) from error


def _raised_by_torchax(error: Exception) -> bool:
    """Says whether torchax, or JAX on its behalf, raised an error, and not the model's own code."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return bool({"torchax", "jax"} & {*Path(last.filename).parts})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _arrays(output: Any) -> Any:
    """Returns the arrays of an output in dictionaries and tuples; None for all else."""
    if isinstance(output, Mapping):
        parts = {name: _arrays(part) for name, part in output.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(output, tuple | list):
        return tuple(_arrays(part) for part in output)
    return output if isinstance(output, jax.Array) else None
