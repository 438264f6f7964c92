"""Every normalizer by name: what command lines, tests, tables and benchmarks iterate over."""

import ast
import dataclasses
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softmax_jax.normalizers import checks, maps, scales, sparse
from softmax_jax.normalizers.fit_file import fitted_numbers
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import Scale


@dataclasses.dataclass(frozen=True)
class Method:
    """A registered pair of a map and a scale; its numbers are the keyword arguments of both."""

    name: str
    map: Map
    scale: Callable[..., Scale] | None
    fit: Callable[[str], dict[str, Any]] | None = None
    """Reads some of the numbers from a file, which the argument `fit` names."""

    @property
    def numbers(self) -> dict[str, Any]:
        """The names of the numbers this method takes, with their defaults: the scale's, then the map's."""
        return _scale_numbers(self.scale) | _map_numbers(self.map)

    def build(self, **numbers: Any) -> Normalizer:
        """The normalizer with these numbers, defaults for the others.

        Raises ValueError for a name it lacks and for a value that is no number.
        """
        if self.fit is not None and "fit" in numbers:
            path = numbers.pop("fit")
            fitted = self.fit(str(path))
            if both := sorted(fitted.keys() & numbers.keys()):
                raise ValueError(f"fit={path} holds {', '.join(both)}: give either the file or the numbers")
            numbers |= fitted
        for name in numbers:
            if name not in self.numbers:
                known = ", ".join(f"{key}={value}" for key, value in self.numbers.items()) or "none"
                near = checks.did_you_mean(name, self.numbers)
                raise ValueError(f"normalizer {self.name!r} has no number {name!r}; {near}it takes: {known}")
        numbers = {name: _checked(name, value, self.numbers[name]) for name, value in numbers.items()}
        own = {name: value for name, value in numbers.items() if name in _map_numbers(self.map)}
        rest = {name: value for name, value in numbers.items() if name not in own}
        if own:
            # The map's own checks, which so do not wait for logits; arrays may need more axes than these have.
            plain = {name: value for name, value in own.items() if not jnp.ndim(value)}
            jax.eval_shape(functools.partial(self.map, **plain), jax.ShapeDtypeStruct((1,), jnp.float32))
        map = jax.tree_util.Partial(self.map, **_map_numbers(self.map) | own)
        return Normalizer(map, None if self.scale is None else self.scale(**rest))


def _map_numbers(map: Map) -> dict[str, Any]:
    parameters = inspect.signature(map).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _scale_numbers(scale: Callable[..., Scale] | None) -> dict[str, Any]:
    return {} if scale is None else {p.name: p.default for p in inspect.signature(scale).parameters.values()}


def _checked(name: str, value: Any, default: Any) -> Any:
    """The value if it is a number like its default, or a tuple of them where the default is one or None."""
    if value is None and default is None:
        return None
    if default is None or isinstance(default, tuple):
        rule = "a tuple of numbers, such as (0.5, 6.0)"
        if isinstance(value, tuple | list):
            return tuple(_checked(f"each of {name}", number, 1.0) for number in value)
    else:
        rule = f"a number, such as {default}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            checks.finite(name, value)
            # A whole number written for a real one is still to be differentiated.
            return float(value) if isinstance(default, float) else value
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return value
    raise ValueError(f"{name} is {checks.shown(value)}; it must be {rule}")


BARE_FILE = re.compile(r"""\bfit\s*=\s*([^\s'"(),][^'"(),]*)""")
"""A file given without quotes, as a command line would have it."""

_methods: dict[str, Method] = {}
METHODS = MappingProxyType(_methods)
"""Registered methods by name, in order of registration; a read-only view."""


def register(
    name: str,
    map: Map,
    scale: Callable[..., Scale] | None = None,
    *,
    fit: Callable[[str], dict[str, Any]] | None = None,
) -> None:
    """Makes the pair known under a name, everywhere at once.

    Keyword-only parameters of `map` and the parameters of `scale` become the method's numbers, so they
    need defaults. `fit`, if given, reads some of them from the file that `name(fit=PATH)` names. Raises
    ValueError if the name is taken or no identifier, or if a number lacks a default or is claimed by both.
    """
    if not isinstance(name, str) or not name.isidentifier() or name in _methods:
        raise ValueError(f"cannot register {name!r}: a name must be new and a Python identifier")
    checks.function("map", map, "softmax_jax.softmax")
    if scale is not None and (isinstance(scale, Scale) and not isinstance(scale, type)):
        raise TypeError(
            f"scale is {checks.shown(scale)}; it must be a class, so that it has defaults: leave the () out"
        )
    if scale is not None:
        checks.function("scale", scale, "the class softmax_jax.LogLength")
    if fit is not None:
        checks.function("fit", fit, "one that takes a path and returns numbers by name")
    clash = _map_numbers(map).keys() & _scale_numbers(scale).keys()
    method = Method(name, map, scale, fit)
    missing = [number for number, default in method.numbers.items() if default is inspect.Parameter.empty]
    if clash or missing:
        raise ValueError(
            f"cannot register {name!r}: numbers without a default {missing}, claimed twice {sorted(clash)}"
        )
    _methods[name] = method


def normalizer(spec: str, **numbers: Any) -> Normalizer:
    """The normalizer registered under a name, with its numbers given as keywords or within the text.

    A name, or a name with numbers in brackets: `"ssmax(s=0.43)"`, `"temperature(0.2)"`, or with a file that
    holds some, `"adaptive(fit=temperature.json)"`, in quotes if its name has a comma or bracket. Raises ValueError
    for an unknown name or number (listing the known ones), for a value that breaks its number's rule, and for
    text that is not of this form.

    >>> normalizer("ssmax", s=0.43).scale == normalizer("ssmax(s=0.43)").scale
    True
    """
    if not isinstance(spec, str):
        raise TypeError(f"the normalizer is {checks.shown(spec)}; it must be given by name, such as 'softmax'")
    name, positional, written = _parse(spec)
    if name not in METHODS:
        near = checks.did_you_mean(name, METHODS)
        raise ValueError(f"unknown normalizer {name!r}: {near}known are {', '.join(METHODS)}")
    method = METHODS[name]
    if len(positional) > len(method.numbers):
        raise ValueError(f"{spec!r} gives {len(positional)} numbers; {name!r} takes at most {len(method.numbers)}")
    given = [*zip(method.numbers, positional), *written.items(), *numbers.items()]
    twice = [number for number, times in Counter(number for number, _ in given).items() if times > 1]
    if twice:
        raise ValueError(f"{spec!r} gives {', '.join(twice)} twice: give each number once")
    return method.build(**dict(given))


def _parse(spec: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Splits `name(1, b=2)` into its name, positional and named numbers."""
    spec_with_quotes = BARE_FILE.sub(lambda match: f"fit={match[1].strip()!r}", spec)
    try:
        node = ast.parse(spec_with_quotes.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
            if len(named) == len(node.keywords):
                return node.func.id, [ast.literal_eval(argument) for argument in node.args], named
    except (SyntaxError, TypeError, ValueError):
        pass
    raise ValueError(f"cannot read the normalizer {spec!r}: write a name, or a name with numbers as in 'ssmax(s=0.43)'")


register("softmax", maps.softmax)
register("temperature", maps.softmax, scales.ConstantTemperature)
register("adaptive", maps.softmax, scales.EntropyPolynomial, fit=fitted_numbers)
register("ssmax", maps.softmax, scales.LogLength)
register("clipped_ssmax", maps.softmax, scales.ClippedLogLength)
register("softpick", maps.softpick)
register("scalable_softpick", maps.softpick, scales.LogLength)
register("length_scaled", maps.softmax, scales.LengthRule)
register("softmax1", maps.softmax1)
register("sink_softmax", maps.sink_softmax)
register("hardmax", maps.hardmax)
register("shifted_softmax", maps.shifted_softmax)
register("signed_l1", maps.signed_l1)
register("sparsemax", sparse.sparsemax)
register("entmax15", sparse.entmax15)
register("entmax", sparse.entmax)
register("asentmax", sparse.entmax15, scales.LogLengthPower)
register("adaptive_entmax15", sparse.entmax15, scales.EntropyPolynomial, fit=fitted_numbers)
register("top_k", sparse.top_k_softmax)
register("stieltjes", sparse.stieltjes)
register("as_stieltjes", sparse.stieltjes, scales.LogLengthPower)
