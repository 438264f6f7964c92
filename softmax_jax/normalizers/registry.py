"""Every normalizer by name: what command lines, tests, tables and benchmarks iterate over."""

import ast
import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.entry import UNWRITTEN, Entry, entry_of
from softmax_jax.normalizers.map import Map
from softmax_jax.normalizers.masking import Axis, Mask
from softmax_jax.normalizers.normalizer import MapLike, Normalizer
from softmax_jax.normalizers.numbers import LEARN
from softmax_jax.normalizers.scales import Scale


@dataclasses.dataclass(frozen=True)
class Method:
    """A registered pair of a map and a scale. Its numbers are those of both; called with logits, it weighs them."""

    name: str
    map: MapLike
    scale: type[Scale] | None = None
    entry: Entry = UNWRITTEN
    """What the documentation says of it; that of the map unless given, where it has no scale."""
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Its defaults, where they are not those of map and scale."""

    def __post_init__(self) -> None:
        if self.entry is UNWRITTEN and self.scale is None:
            object.__setattr__(self, "entry", entry_of(self.map))

    def __call__(
        self, logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; defaults for the numbers not given."""
        return self.build(**numbers)(logits, axis, where)

    @property
    def numbers(self) -> dict[str, Any]:
        """The names of the numbers this method takes, with their defaults: the scale's, then the map's."""
        numbers = (self.scale.defaults() if self.scale else {}) | self._numbers_of_map()
        return {name: self.own.get(name, default) for name, default in numbers.items()}

    @property
    def learned(self) -> tuple[str, ...]:
        """The numbers that train with a model, one per head."""
        of_map = self.map.marked(LEARN) if isinstance(self.map, Map) else {}
        return (*(self.scale.marked(LEARN) if self.scale else ()), *of_map)

    @property
    def fused(self) -> str:
        """How it rides a fused softmax attention kernel, in words."""
        kernel = self.map.fused if isinstance(self.map, Map) else None
        if kernel is None:
            return "no"
        if kernel == "sink":
            return "yes: the output times 1 / (1 + exp(sink - lse))"
        if self.scale is None:
            return "yes"
        return "yes: in two calls, the first for the entropy" if self.scale.reads_entropy else QUERY_FACTOR

    def build(self, **numbers: Any) -> Normalizer:
        """The normalizer with these numbers, defaults for the others. `fit=PATH` reads some from a fit's file.

        Raises ValueError for a name it lacks and for a value that is no number or breaks its rule.
        """
        if "fit" in numbers and hasattr(self.scale, "numbers_in"):
            path = str(numbers.pop("fit"))
            fitted = self.scale.numbers_in(path)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            if both := sorted(fitted.keys() & numbers.keys()):
                raise ValueError(f"fit={path} holds {', '.join(both)}: give either the file or the numbers")
            numbers |= fitted
        for name in numbers.keys() - self.numbers.keys():
            known = ", ".join(f"{key}={value}" for key, value in self.numbers.items()) or "none"
            near = checks.did_you_mean(name, self.numbers)
            raise ValueError(f"normalizer {self.name!r} has no number {name!r}; {near}it takes: {known}")
        numbers = {**self.own, **numbers}
        of_map = {name: value for name, value in numbers.items() if name in self._numbers_of_map()}
        of_scale = {name: value for name, value in numbers.items() if name not in of_map}
        try:
            map = self._map_with(of_map)
            return Normalizer(map, self.scale(**self.scale.checked(of_scale)) if self.scale else None)
        except TypeError as error:  # of the wrong kind, as in "ssmax(s='a')"
            raise ValueError(str(error)) from None

    def _numbers_of_map(self) -> dict[str, Any]:
        if isinstance(self.map, Map):
            return self.map.defaults()
        parameters = inspect.signature(self.map).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def _map_with(self, numbers: dict[str, Any]) -> MapLike:
        if isinstance(self.map, Map):
            return dataclasses.replace(self.map, **self.map.checked(numbers))
        return jax.tree_util.Partial(self.map, **self._numbers_of_map() | numbers)


QUERY_FACTOR = "yes: β multiplies the query"

_methods: dict[str, Method] = {}
METHODS = MappingProxyType(_methods)
"""Registered methods by name, in order of registration; a read-only view."""


def register(name: str, map: MapLike, scale: type[Scale] | None = None, entry: Entry = UNWRITTEN, **own: Any) -> Method:
    """Makes a map over a scale known under a name, everywhere at once, and returns it to be called.

    `map` is a map, or a function with the signature of `jax.nn.softmax`, whose keyword-only parameters are its
    numbers; `scale` a class of scales; `entry` what the documentation says of it; `own` the defaults of this method
    where they differ from those of map and scale. Raises ValueError if the name is taken or no identifier, if a number
    lacks a default or belongs to both, and for a default that breaks its rule or is of no number.
    """
    if not name.isidentifier() or name in _methods:
        raise ValueError(f"cannot register {name!r}: a name must be new and a Python identifier")
    if isinstance(map, type) or not (scale is None or isinstance(scale, type)):
        raise TypeError(
            f"cannot register {name!r}: the map must be an object, as Softpick(), and the scale a class, as LogLength"
        )
    method = Method(name, map, scale, entry, own)
    twice = sorted(method._numbers_of_map().keys() & (scale.defaults() if scale else {}).keys())
    absent = (dataclasses.MISSING, inspect.Parameter.empty)
    lacking = [number for number, default in method.numbers.items() if any(default is none for none in absent)]
    if twice or lacking:
        raise ValueError(f"cannot register {name!r}: numbers without a default {lacking}, claimed twice {twice}")
    method.build(**own)
    _methods[name] = method
    return method


def normalizer(spec: str, **numbers: Any) -> Normalizer:
    """The normalizer registered under a name, with its numbers given as keywords or within the text.

    A name, or a name with numbers in brackets: `"ssmax(s=0.43)"`, `"temperature(0.2)"`, or with a file that
    holds some, `"adaptive(fit=temperature.json)"`, in quotes if its name has a comma or bracket. Raises ValueError
    for an unknown name or number (listing the known ones), for a value that breaks its number's rule, and for
    text that is not of this form.

    >>> normalizer("ssmax", s=0.43).scale == normalizer("ssmax(s=0.43)").scale
    True
    """
    method, given = method_of(spec, **numbers)
    return method.build(**given)


def method_of(spec: str, **numbers: Any) -> tuple[Method, dict[str, Any]]:
    """The method of such a text, and the numbers that it is given. Raises ValueError as `normalizer` does."""
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
    return method, dict(given)


BARE_FILE = re.compile(r"""\bfit\s*=\s*([^\s'"(),][^'"(),]*)""")
"""A file given without quotes, as a command line would have it."""


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
