"""Registers normalizers by name and reads their texts: for command lines, tests, tables and benchmarks."""

import ast
import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import jax
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks, packages
from softmax_jax.normalizers.fit_file import fitted_numbers
from softmax_jax.normalizers.maps import UNWRITTEN, Entry, Map, entry_of
from softmax_jax.normalizers.normalizer import MapLike, Normalizer, SoftCapped
from softmax_jax.normalizers.parameters import LEARN, OF_QUERY, fields_of, marked
from softmax_jax.normalizers.row import AnyAxis, AnyMask
from softmax_jax.normalizers.scales import EntropyPolynomial, Scale, ScaleLike
from softmax_jax.normalizers.user_modules import OF_A_MODULE, is_trusted, named_module, read_module, trust
from softmax_jax.refusal import Refusal, WrongType

CAP = "cap"
"""The number that every method takes besides its own: that of `SoftCapped`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A map and a scale under a name. Takes the numbers of both; called with logits, it weighs them.

    Two methods are equal if name and defaults are. A scale that is an object, as of a `Normalizer` that a module
    holds, keeps its numbers.
    """

    name: str
    map: MapLike
    scale: type[Scale] | ScaleLike | None = None
    entry: Entry = UNWRITTEN
    """What the documentation says of it; without a scale the entry of the map unless given."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults that differ from those of map and scale."""

    def __post_init__(self) -> None:
        if self.entry is UNWRITTEN and self.scale is None:
            object.__setattr__(self, "entry", entry_of(self.map))

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Returns weights of the logits along `axis`, 0 where `where` is False; `numbers` replace the defaults."""
        return self.build(**numbers)(logits, axis, where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and (self.name, self.build()) == (other.name, other.build())

    def __hash__(self) -> int:
        return hash((self.name, self.build()))

    @property
    def numbers(self) -> dict[str, Any]:
        """The names of the numbers this method takes, with their defaults: the scale's, then the map's."""
        return {
            name: self.defaults.get(name, value)
            for name, value in (self._scale_numbers() | self._map_numbers()).items()
        }

    @property
    def learned(self) -> tuple[str, ...]:
        """The numbers that train with a model, one per head."""
        return marked(self.scale, LEARN) + marked(self.map, LEARN)

    @property
    def of_query(self) -> tuple[str, ...]:
        """The learned numbers that were published as linear in the query."""
        return marked(self.scale, OF_QUERY) + marked(self.map, OF_QUERY)

    def build(self, **numbers: Any) -> Normalizer:
        """Returns the normalizer with these numbers, defaults for the others.

        A scale that is an `EntropyPolynomial` also takes `fit=PATH`, the file of a temperature fit that holds some.
        Raises ValueError for a name it lacks and for a value that is no number or breaks its rule.
        """
        if "fit" in numbers and isinstance(self.scale, type) and issubclass(self.scale, EntropyPolynomial):
            path = str(numbers.pop("fit"))
            fitted = fitted_numbers(path)
            if both := sorted(fitted.keys() & numbers.keys()):
                raise Refusal(f"fit={path} holds {', '.join(both)}: give either the file or the numbers")
            numbers |= fitted
        known = self.numbers
        cap = None if CAP in known else numbers.pop(CAP, None)
        for name in numbers.keys() - known.keys():
            takes = ", ".join(f"{key}={value}" for key, value in known.items()) or "none"
            near = checks.did_you_mean(name, (*known, CAP))
            raise Refusal(f"normalizer {self.name!r} has no number {name!r}; {near}it takes: {takes}")
        numbers = {**self.defaults, **numbers}
        map_numbers = {name: numbers.pop(name, default) for name, default in self._map_numbers().items()}
        scale = self.scale(**self.scale.checked(numbers)) if isinstance(self.scale, type) else self.scale
        map_numbers = self.map.checked(map_numbers) if isinstance(self.map, Map) else map_numbers
        built = Normalizer(jax.tree_util.Partial(self.map, **map_numbers) if map_numbers else self.map, scale)
        return built if cap is None else Normalizer(SoftCapped(cap, built))

    def _scale_numbers(self) -> dict[str, Any]:
        return {field.name: field.default for field in fields_of(self.scale)} if isinstance(self.scale, type) else {}

    def _map_numbers(self) -> dict[str, Any]:
        if isinstance(self.map, Map):
            return self.map.numbers_by_name()
        parameters = inspect.signature(self.map).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


NormalizerLike = Normalizer | Method | MapLike | str
"""What is taken for a normalizer: one, a method, a map, a function with the signature of `jax.nn.softmax`, a name."""

_methods: dict[str, Method] = {}
METHODS = MappingProxyType(_methods)
"""Registered methods by name, in order of registration; a read-only view."""


def register(
    name: str, map: MapLike, scale: type[Scale] | None = None, entry: Entry = UNWRITTEN, **defaults: Any
) -> Method:
    """Makes a map over a scale known under a name in every command, layer and transformation.

    Arguments:
        name: A new Python identifier.
        map: A map, or a function with the signature of `jax.nn.softmax`, whose keyword-only parameters are its numbers.
        scale: A class of scales, or None for β = 1.
        entry: What the documentation says of the method.
        defaults: Those of this method where they differ from those of map and scale.

    Returns:
        The method, which weighs logits when it is called.

    Raises:
        TypeError: The map is a class, or the scale is none.
        ValueError: The name is taken or no identifier, a number lacks a default or belongs to both, or a default breaks
            its rule or is of no number.

    Example:
        >>> from softmax_jax import LogLength, sparsemax
        >>> register("scaled_sparsemax", sparsemax, LogLength, s=0.5).numbers
        {'s': 0.5, 'bias': 0.0}
        >>> del _methods["scaled_sparsemax"]  # no other example sees it
    """
    if not name.isidentifier() or name in _methods:
        raise Refusal(f"cannot register {name!r}: a name must be new and a Python identifier")
    if isinstance(map, type) or not (scale is None or isinstance(scale, type)):
        raise WrongType(
            f"cannot register {name!r}: the map must be an object, as Softpick(), and the scale a class, as LogLength"
        )
    method = Method(name, map, scale, entry, defaults)
    twice = sorted(method._map_numbers().keys() & method._scale_numbers().keys())
    absent = (dataclasses.MISSING, inspect.Parameter.empty)
    lacking = [number for number, default in method.numbers.items() if any(default is mark for mark in absent)]
    if twice or lacking:
        raise Refusal(f"cannot register {name!r}: numbers without a default {lacking}, claimed twice {twice}")
    method.build(**defaults)
    _methods[name] = method
    return method


def normalizer(spec: NormalizerLike, **numbers: Any) -> Normalizer:
    """Returns the normalizer registered under a name, with its numbers given as keywords or within the text.

    The text is a name, or a name with numbers in brackets: `"ssmax(s=0.43)"`, `"temperature(0.2)"`, or with a file that
    holds some, `"adaptive(fit=temperature.json)"`, in quotes if its name has a comma or bracket. A normalizer of yours
    needs no registration: `"my_module:relu"` is what the module holds under that name, a map, a function with the
    signature of `jax.nn.softmax`, whose keyword-only parameters are its numbers, or a `Normalizer`. Any of these
    objects is taken instead of a text too.

    An installed package adds names too, by entry points of the group `softmax_jax.normalizers`; it is imported when one
    of them is asked for.

    Raises ValueError for an unknown name or number (with the nearest known ones), for a value that breaks its number's
    rule, for text that is not of this form, and for a module that is not there or holds no such thing; TypeError for
    an object that is no normalizer, saying how it was called and what it gave.

    >>> normalizer("ssmax", s=0.43).scale == normalizer("ssmax(s=0.43)").scale
    True
    """
    method, numbers = method_of(spec, **numbers)
    return method.build(**numbers)


def as_normalizer(spec: NormalizerLike) -> Normalizer:
    """Returns the normalizer itself, or that of a name, a method, a map or a function. Raises as `normalizer` does."""
    return spec if isinstance(spec, Normalizer) else normalizer(spec)


def method_of(spec: NormalizerLike, **numbers: Any) -> tuple[Method, dict[str, Any]]:
    """Returns the method of such a text or object, and its numbers. Raises as `normalizer` does."""
    if not isinstance(spec, str):
        return _wrap("normalizer", spec), numbers
    module, text = match.groups() if (match := OF_A_MODULE.fullmatch(spec)) else (None, spec)
    name, positional, written = _parse(text)
    if "fit" in written or imported_for(spec):
        trust(spec)
    method = _imported(module, name) if module else METHODS.get(name) or _installed(name)
    if len(positional) > len(method.numbers):
        raise Refusal(f"{spec!r} gives {len(positional)} numbers; {name!r} takes at most {len(method.numbers)}")
    pairs = [*zip(method.numbers, positional), *written.items(), *numbers.items()]
    twice = [number for number, times in Counter(number for number, _ in pairs).items() if times > 1]
    if twice:
        raise Refusal(f"{spec!r} gives {', '.join(twice)} twice: give each number once")
    return method, dict(pairs)


def imported_for(spec: str) -> str | None:
    """Returns the module of somebody else that is imported for the text of a normalizer; None if none is."""
    name = spec.partition("(")[0].strip()
    if named_module(spec) or (name in METHODS and not packages.is_loaded(name)):
        return named_module(spec)
    return packages.module_of(name)


def all_names() -> list[str]:
    """Returns the name of every normalizer, those of installed packages too, which are imported for that.

    Raises Refusal for a package that cannot be imported.
    """
    for name in packages.package_names():
        if name not in METHODS:
            _installed(name)
    return list(METHODS)


def _installed(name: str) -> Method:
    """Returns the method that an installed package adds under a name, which is registered from now on.

    Raises Refusal for a name that no package adds, and for a package that is broken or holds no normalizer there.
    """
    names = packages.package_names()
    if name not in names:
        near = checks.did_you_mean(name, (*METHODS, *names), most=3)
        listed = 'all of softmax_jax: python -c "import softmax_jax; print(*softmax_jax.METHODS)"'
        raise Refusal(f"unknown normalizer {name!r}: {near}{listed}; one of your own is written my_module:{name}")
    package, value = packages.load(name)
    try:
        method = dataclasses.replace(_wrap(name, value), name=name)
    except WrongType as problem:
        raise WrongType(f"the package {package} holds no normalizer: {problem}") from None
    return _methods.setdefault(name, method)


def _imported(module: str, name: str) -> Method:
    """Returns the method that a module holds under a name: a registered one, a map, a function or a `Normalizer`.

    Raises ValueError, in one line, if the module cannot be imported, lacks the name, or holds something else there.
    """
    spec = f"{module}:{name}"
    content = read_module(module, f"unknown normalizer {spec!r}")
    value = content.get(name, METHODS.get(name))  # which the module may have registered, and kept nothing
    if value is None:
        near = checks.did_you_mean(name, content)
        raise Refusal(f"unknown normalizer {spec!r}: {near}{module} must hold a normalizer of that name: add it")
    return _wrap(spec, value)


def _wrap(name: str, value: Any) -> Method:
    """Returns a value that is a method, or a method of a normalizer, map or function, or of a class without arguments.

    Raises WrongType, in one line that starts with `name`, for anything else.
    """
    if isinstance(value, Method):
        return value
    if isinstance(value, type) and "__call__" in dir(value) and not inspect.isabstract(value):
        value = value if _arguments_without_default(value) else value()
    if isinstance(value, jax.tree_util.Partial):
        value = Normalizer(value)
    if isinstance(value, Normalizer):
        return Method(name, value.map, value.scale)
    if isinstance(value, Scale):
        scale = checks.shown(value)
        rule = f"it must lie under a map, as in sj.Normalizer(map=sj.softmax, scale={scale})"
        raise WrongType(f"{name} is the scale {scale}; {rule}")
    if problem := None if isinstance(value, Map) else _find_problem(value):
        raise WrongType(
            f"{name} is {checks.shown(value)}; it must be a map, a Normalizer, the name of one, as 'ssmax(s=0.43)', or "
            f"a function that is called as jax.nn.softmax, with logits, axis and where, and {problem}"
        )
    return Method(name, value)


def _arguments_without_default(kind: type) -> list[str]:
    """Returns the names of the arguments that a class must be given."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # of a class that is written in C
        return ["its arguments"]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]


def _find_problem(function: Any) -> str | None:
    """Returns what goes wrong when a function weighs a row, None if nothing does. Traces, and computes nothing."""
    if isinstance(function, type):
        lacking = ", ".join(_arguments_without_default(function))
        without = f", and {lacking} of this one lacks one: give it one" if lacking else ""
        return f"a class makes one if it can be called and its arguments have defaults{without}"
    if not callable(function):
        return "it cannot be called so"
    logits, where = (jax.ShapeDtypeStruct((2, 3), dtype) for dtype in ("float32", "bool"))
    call = "f(logits of shape (2, 3), -1, where)"
    try:
        weights = jax.eval_shape(lambda logits, where: function(logits, -1, where), logits, where)
    except Exception as error:  # of many types, as the function is the user's
        return f"called as {call} it says: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    numbers = Method("it", cast(MapLike, function)).numbers
    lacking = [name for name, default in numbers.items() if default is inspect.Parameter.empty]
    if lacking:
        return f"{', '.join(lacking)} has no default: give one, or bind it with jax.tree_util.Partial"
    shape = getattr(weights, "shape", None)
    return None if shape == logits.shape else f"it gives the shape {shape} to logits of shape {logits.shape}: {call}"


def require_fit_within(text: str, run: Path) -> None:
    """Raises ValueError if a run names a normalizer with a fit outside of its directory by a text that nobody typed.

    A file that came with a run would else have others of this machine opened.
    """
    match = OF_A_MODULE.fullmatch(text)
    fit = _parse(match[2] if match else text)[2].get("fit")
    if fit is None or is_trusted(text):
        return
    if "\0" in str(fit) or not Path(str(fit)).resolve().is_relative_to(run.resolve()):
        raise Refusal(
            f"the fit {checks.shown(str(fit))} does not lie within {run}: if you trust it, type {checks.shown(text)} "
            "yourself, as in --normalizers or softmax_jax.normalizer(...)"
        )


BARE_FILE = re.compile(r"""\bfit\s*=\s*([^\s'"(),][^'"(),]*)""")
"""A file without quotes, as typed on a command line."""


def _parse(spec: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Splits `name(1, b=2)` into its name, positional and named numbers."""
    with_quotes = BARE_FILE.sub(lambda match: f"fit={match[1].strip()!r}", spec)
    try:
        node = checks.expression(with_quotes)
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
            if len(named) == len(node.keywords):
                return node.func.id, [ast.literal_eval(argument) for argument in node.args], named
    except (TypeError, ValueError, RecursionError, MemoryError):
        pass
    rule = "write a name, or a name with numbers as in 'ssmax(s=0.43)'"
    raise Refusal(f"cannot read the normalizer {checks.shown(spec)}: {rule}")
