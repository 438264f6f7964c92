"""Every normalizer by name: what command lines, tests, tables and benchmarks iterate over."""

import ast
import dataclasses
import inspect
import itertools
import re
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import jax
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks, own_modules
from softmax_jax.normalizers.maps import UNWRITTEN, Entry, Map, entry_of
from softmax_jax.normalizers.masking import AnyAxis, AnyMask
from softmax_jax.normalizers.normalizer import MapLike, Normalizer, SoftCapped
from softmax_jax.normalizers.parameters import LEARN, OF_QUERY, fields_of, marked
from softmax_jax.normalizers.scales import Scale, ScaleLike
from softmax_jax.refusal import Refusal, WrongType

CAP = "cap"
"""The number that every method takes besides its own: that of `SoftCapped`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A pair of a map and a scale under a name. Its numbers are those of both; called with logits, it weighs them.

    It equals one of the same name with equal defaults.
    A scale that is an object, as of a `Normalizer` that a module holds, keeps its numbers.
    """

    name: str
    map: MapLike
    scale: type[Scale] | ScaleLike | None = None
    entry: Entry = UNWRITTEN
    """What the documentation says of it; that of the map unless given, where it has no scale."""
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Its defaults, where they are not those of map and scale."""

    def __post_init__(self) -> None:
        if self.entry is UNWRITTEN and self.scale is None:
            object.__setattr__(self, "entry", entry_of(self.map))

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; defaults for the numbers not given."""
        return self.build(**numbers)(logits, axis, where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and (self.name, self.build()) == (other.name, other.build())

    def __hash__(self) -> int:
        return hash((self.name, self.build()))

    @property
    def numbers(self) -> dict[str, Any]:
        """The names of the numbers this method takes, with their defaults: the scale's, then the map's."""
        return {name: self.own.get(name, default) for name, default in (self._of_scale() | self._of_map()).items()}

    @property
    def learned(self) -> tuple[str, ...]:
        """The numbers that train with a model, one per head."""
        return marked(self.scale, LEARN) + marked(self.map, LEARN)

    @property
    def of_query(self) -> tuple[str, ...]:
        """The learned numbers that were published as linear in the query."""
        return marked(self.scale, OF_QUERY) + marked(self.map, OF_QUERY)

    def build(self, **numbers: Any) -> Normalizer:
        """The normalizer with these numbers, defaults for the others. `fit=PATH` reads some from a fit's file.

        Raises ValueError for a name it lacks and for a value that is no number or breaks its rule.
        """
        if "fit" in numbers and hasattr(self.scale, "numbers_in"):
            path = str(numbers.pop("fit"))
            fitted: dict[str, Any] = self.scale.numbers_in(path)  # pyright: ignore
            if both := sorted(fitted.keys() & numbers.keys()):
                raise Refusal(f"fit={path} holds {', '.join(both)}: give either the file or the numbers")
            numbers |= fitted
        known = self.numbers
        cap = None if CAP in known else numbers.pop(CAP, None)
        for name in numbers.keys() - known.keys():
            takes = ", ".join(f"{key}={value}" for key, value in known.items()) or "none"
            near = checks.did_you_mean(name, (*known, CAP))
            raise Refusal(f"normalizer {self.name!r} has no number {name!r}; {near}it takes: {takes}")
        given = {**self.own, **numbers}
        of_map = {name: given.pop(name, default) for name, default in self._of_map().items()}
        scale = self.scale(**self.scale.checked(given)) if isinstance(self.scale, type) else self.scale
        of_map = self.map.checked(of_map) if isinstance(self.map, Map) else of_map
        built = Normalizer(jax.tree_util.Partial(self.map, **of_map) if of_map else self.map, scale)
        return built if cap is None else Normalizer(SoftCapped(cap, built))

    def _of_scale(self) -> dict[str, Any]:
        return {field.name: field.default for field in fields_of(self.scale)} if isinstance(self.scale, type) else {}

    def _of_map(self) -> dict[str, Any]:
        if isinstance(self.map, Map):
            return self.map.own_numbers()
        parameters = inspect.signature(self.map).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


NormalizerLike = Normalizer | Method | MapLike | str
"""Whatever is taken for a normalizer: one, a method, a map, a function with the signature of `jax.nn.softmax`, a name.
"""

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
        raise Refusal(f"cannot register {name!r}: a name must be new and a Python identifier")
    if isinstance(map, type) or not (scale is None or isinstance(scale, type)):
        raise WrongType(
            f"cannot register {name!r}: the map must be an object, as Softpick(), and the scale a class, as LogLength"
        )
    method = Method(name, map, scale, entry, own)
    twice = sorted(method._of_map().keys() & method._of_scale().keys())
    absent = (dataclasses.MISSING, inspect.Parameter.empty)
    lacking = [number for number, default in method.numbers.items() if any(default is none for none in absent)]
    if twice or lacking:
        raise Refusal(f"cannot register {name!r}: numbers without a default {lacking}, claimed twice {twice}")
    method.build(**own)
    _methods[name] = method
    return method


def normalizer(spec: NormalizerLike, **numbers: Any) -> Normalizer:
    """The normalizer registered under a name, with its numbers given as keywords or within the text.

    A name, or a name with numbers in brackets: `"ssmax(s=0.43)"`, `"temperature(0.2)"`, or with a file that
    holds some, `"adaptive(fit=temperature.json)"`, in quotes if its name has a comma or bracket. One of your own needs
    no registration: `"my_module:relu"` is what the module holds under that name, a map, a function with the
    signature of `jax.nn.softmax`, whose keyword-only parameters are its numbers, or a `Normalizer`. Each of these may
    also be given itself, in the place of a text.

    Raises ValueError for an unknown name or number (listing the known ones), for a value that breaks its number's
    rule, for text that is not of this form, and for a module that is not there or holds no such thing; TypeError for
    an object that is no normalizer, saying how it was called and what it gave.

    >>> normalizer("ssmax", s=0.43).scale == normalizer("ssmax(s=0.43)").scale
    True
    """
    method, given = method_of(spec, **numbers)
    return method.build(**given)


def as_normalizer(given: NormalizerLike) -> Normalizer:
    """The normalizer itself, or that of a name, a method, a map or a function. Raises as `normalizer` does."""
    return given if isinstance(given, Normalizer) else normalizer(given)


def method_of(spec: NormalizerLike, **numbers: Any) -> tuple[Method, dict[str, Any]]:
    """The method of such a text or object, and the numbers that it is given. Raises as `normalizer` does."""
    if not isinstance(spec, str):
        return _method_around("normalizer", spec), numbers
    module, text = match.groups() if (match := OF_A_MODULE.fullmatch(spec)) else (None, spec)
    name, positional, written = _parse(text)
    if module or "fit" in written:
        trust(spec)
    method = _imported(module, name) if module else METHODS.get(name)
    if method is None:
        near = checks.did_you_mean(name, METHODS)
        known = f"known are {', '.join(METHODS)}; one of your own is written my_module:{name}"
        raise Refusal(f"unknown normalizer {name!r}: {near}{known}")
    if len(positional) > len(method.numbers):
        raise Refusal(f"{spec!r} gives {len(positional)} numbers; {name!r} takes at most {len(method.numbers)}")
    given = [*zip(method.numbers, positional), *written.items(), *numbers.items()]
    twice = [number for number, times in Counter(number for number, _ in given).items() if times > 1]
    if twice:
        raise Refusal(f"{spec!r} gives {', '.join(twice)} twice: give each number once")
    return method, dict(given)


def _imported(module: str, name: str) -> Method:
    """The method that a module holds under a name: a registered one, or a map, a function or a `Normalizer`.

    Raises ValueError, in one line, if the module cannot be imported, lacks the name, or holds something else there.
    """
    spec = f"{module}:{name}"
    content = content_of(module, f"unknown normalizer {spec!r}")
    value = content.get(name, METHODS.get(name))  # which the module may have registered, and kept nothing
    if value is None:
        near = checks.did_you_mean(name, content)
        raise Refusal(f"unknown normalizer {spec!r}: {near}{module} must hold a normalizer of that name: add it")
    return _method_around(spec, value)


def _method_around(name: str, value: Any) -> Method:
    """The method that a value is or, if it is a normalizer, map or function, that has its numbers.

    Raises WrongType, in one line that starts with `name`, for anything else.
    """
    if isinstance(value, Method):
        return value
    if isinstance(value, jax.tree_util.Partial):
        value = Normalizer(value)
    if isinstance(value, Normalizer):
        return Method(name, value.map, value.scale)
    if problem := None if isinstance(value, Map) else _problem_of(value):
        raise WrongType(
            f"{name} is {checks.shown(value)}; it must be a map, a Normalizer, the name of one, as 'ssmax(s=0.43)', or "
            f"a function that is called as jax.nn.softmax, with logits, axis and where, and {problem}"
        )
    return Method(name, value)


def content_of(module: str, said: str) -> dict[str, Any]:
    """Imports a module, or a file as `path/to/mine.py`, that somebody typed and returns what it holds, by name.

    It is sought where Python seeks all modules and last in the working directory, which no other import gains.

    Raises ValueError, in one line that starts with `said`, if the module cannot be imported.
    """
    try:
        if module.endswith(".py"):
            return vars(own_modules.import_file(Path(module)))
        return vars(own_modules.import_typed(module))
    except Exception as error:  # of many types, as the module is the user's
        frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        imported = itertools.dropwhile(lambda place: "importlib" not in place, frames)  # less those that asked for it
        places = [place for place in imported if "importlib" not in place]
        problem = " ".join([f"{type(error).__name__}: {error}", *places[-1:]]).replace("\n", " ")
        raise Refusal(
            f"{said}: the module {module} cannot be imported ({problem}): name one that is installed, or a file in "
            "this directory without its .py"
        ) from error


def _problem_of(map: Any) -> str | None:
    """Returns what goes wrong when a map weighs a row, None if nothing does. It traces and computes nothing."""
    if isinstance(map, type):
        return f"a class makes one: give {map.__name__}()"
    if not callable(map):
        return "it cannot be called so"
    logits, where = (jax.ShapeDtypeStruct((2, 3), dtype) for dtype in ("float32", "bool"))
    call = "f(logits of shape (2, 3), -1, where)"
    try:
        weights = jax.eval_shape(lambda logits, where: map(logits, -1, where), logits, where)
    except Exception as error:  # of many types, as the function is the user's
        return f"called as {call} it says: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    numbers = Method("it", cast(MapLike, map)).numbers
    lacking = [name for name, default in numbers.items() if default is inspect.Parameter.empty]
    if lacking:
        return f"{', '.join(lacking)} has no default: give one, or bind it with jax.tree_util.Partial"
    shape = getattr(weights, "shape", None)
    return None if shape == logits.shape else f"it gives the shape {shape} to logits of shape {logits.shape}: {call}"


def trust(*texts: str) -> None:
    """Lets the files that are read in this process name these objects of modules, and fits; `ANY` lets them name all.

    Objects are normalizers and tasks. For what somebody typed: on the command line, or in code, where `normalizer`
    and `Config` do it. Importing a module runs it.
    """
    _trusted.update(texts)


def require_trust(text: str, file: Path) -> None:
    """Raises ValueError if a file names an object of a module by a text that nobody typed in this process."""
    named = OF_A_MODULE.fullmatch(text)
    if named and _trusted.isdisjoint({text, ANY}):
        raise Refusal(
            f"{file} names {checks.shown(text)}, and importing {named[1]} would run its code: if you trust it, "
            "type that name yourself, as in --normalizers or softmax_jax.normalizer(...), or give --trust-code"
        )


def require_fit_within(text: str, run: Path) -> None:
    """Raises ValueError if a run names a normalizer with a fit outside of its directory by a text that nobody typed.

    A file that came with a run would else have others of this machine opened.
    """
    match = OF_A_MODULE.fullmatch(text)
    fit = _parse(match[2] if match else text)[2].get("fit")
    if fit is None or not _trusted.isdisjoint({text, ANY}):
        return
    if "\0" in str(fit) or not Path(str(fit)).resolve().is_relative_to(run.resolve()):
        raise Refusal(
            f"the fit {checks.shown(str(fit))} does not lie within {run}: if you trust it, type {checks.shown(text)} "
            "yourself, as in --normalizers or softmax_jax.normalizer(...)"
        )


ANY = "any module"
"""What `trust` takes for all texts; it is no text of a normalizer."""
_trusted: set[str] = set()

OF_A_MODULE = re.compile(r"\s*([\w.]{1,255})\s*:(.*)", re.DOTALL)
"""A normalizer that a module holds."""
BARE_FILE = re.compile(r"""\bfit\s*=\s*([^\s'"(),][^'"(),]*)""")
"""A file given without quotes, as a command line would have it."""


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
