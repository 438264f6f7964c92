"""Shows in docstrings what the reader of the source would leave out, and normalizers as what users call."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
EITHER, KEYWORD = griffe.ParameterKind.positional_or_keyword, griffe.ParameterKind.keyword_only
CALL = griffe.Parameters(
    griffe.Parameter("logits", kind=EITHER),
    griffe.Parameter("axis", kind=EITHER, default="-1"),
    griffe.Parameter("where", kind=EITHER, default="None"),
)
"""The parameters of every normalizer, in front of its numbers."""


class Docstrings(griffe.Extension):
    """Shows examples as code, where `>>>` would be a quotation, and the fields of named tuples, maps and scales."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fences every run of lines that starts with a prompt."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```\n", obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Writes fields of a named tuple under the docstring, and numbers of a map or scale as its parameters."""
        if any(map(_is_number, cls.attributes.values())):
            fields = [field for field in cls.attributes.values() if _is_number(field) or field.value is None]
            own, numbers = griffe.Parameter("self", kind=EITHER), [_number(field, EITHER) for field in fields]
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *numbers)))
        if cls.docstring and any(str(base) == "NamedTuple" for base in cls.bases):
            fields = [f"{name}: {field.annotation}" for name, field in cls.attributes.items()]
            lines = ",\n".join(f"    {field}" for field in fields)
            cls.docstring.value += f"\n\n```python\n{cls.name}(\n{lines},\n)\n```\n"

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Shows `softmax = Softmax()` and functions under `@method` as they are called: with logits and numbers."""
        for name, member in list(mod.members.items()):
            if isinstance(member, griffe.Attribute) and isinstance(call := member.value, griffe.ExprCall):
                kind = mod.members.get(str(call.function))
                if isinstance(kind, griffe.Class) and not call.arguments:
                    fields = [_number(field, KEYWORD) for field in kind.attributes.values() if _is_number(field)]
                    shown = griffe.Function(
                        name,
                        lineno=kind.lineno,
                        endlineno=kind.endlineno,
                        parameters=griffe.Parameters(*CALL, *fields),
                        docstring=kind.docstring and griffe.Docstring(kind.docstring.value),
                    )
                    mod.set_member(name, shown)
            elif isinstance(member, griffe.Function) and any(
                decorator.callable_path.endswith(".method") for decorator in member.decorators
            ):
                numbers = griffe.Parameter("numbers", kind=griffe.ParameterKind.var_keyword)
                member.parameters, member.returns = griffe.Parameters(*CALL, numbers), None


def _is_number(member: griffe.Attribute) -> bool:
    """Says whether a field is declared by `number`."""
    return isinstance(member.value, griffe.ExprCall) and str(member.value.function) == "number"


def _number(field: griffe.Attribute, kind: griffe.ParameterKind) -> griffe.Parameter:
    """Returns a field as a parameter, with its default if it has one."""
    arguments = field.value.arguments if isinstance(field.value, griffe.ExprCall) else []
    keywords = {argument.name: argument.value for argument in arguments if isinstance(argument, griffe.ExprKeyword)}
    return griffe.Parameter(field.name, kind=kind, default=keywords.get("default"))
