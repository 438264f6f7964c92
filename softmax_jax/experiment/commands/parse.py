"""Reads a command line: the kinds of options, the checks of their values, and mistakes in one line."""

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, TypeVar

import tyro
from tyro import _errors as mistakes, _strings as tyro_texts

from softmax_jax.experiment import program
from softmax_jax.experiment.commands.output import print_any_letter, unknown
from softmax_jax.experiment.configs import PRESETS, is_file
from softmax_jax.experiment.report.print_layout import Paper
from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.user_modules import ANY, trust
from softmax_jax.refusal import Refusal

T = TypeVar("T")
UnlessGiven = Annotated[T, tyro.conf.arg(help_behavior_hint="")]
"""The type of an option that is empty unless given; its description says what happens then."""
TrustCode = Annotated[
    bool,
    tyro.conf.arg(
        help="Import a module that a run's config.json names, which runs its code. One that this command line names "
        "itself, as in my_module:relu, needs no such leave."
    ),
]
"""The type of --trust-code, for commands that load a run."""
PaperOption = Annotated[
    Paper | None,
    tyro.conf.arg(
        help="Write every chart for print too, into the directory paper: PDF and SVG as wide as one column (3.25 "
        "inches) or two (6.75), in a serif font, with names for readers, and the title as text for a caption."
    ),
]
"""The type of --paper, for commands that draw."""
Quick = Annotated[
    bool,
    tyro.conf.arg(
        help="Take a look in about a minute: fewer lengths, sets, seeds or steps, unless an option says how many."
    ),
]
"""The type of --quick, for commands that take minutes."""


_joined_by_tyro = tyro_texts.remove_single_line_breaks
# tyro begins a new line of help at an indented one, as all but the first of a field's docstring are.
tyro_texts.remove_single_line_breaks = lambda text: _joined_by_tyro(re.sub(r"(?<=\S)\n +(?=\S)", " ", text))


def parse(
    arguments: type[T],
    args: Sequence[str] | None = None,
    *,
    example: str = "",
    quick: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> T:
    """Calls `tyro.cli`, whose help starts with the example. A mistake ends the process in one line, with status 2.

    A `~` behind an equals sign is the home of the user, as the shell makes it behind a blank.

    Arguments:
        arguments: The dataclass of the options
        args: The words of the command line, those of this process by default
        example: A command to show above the help
        quick: Values of options that are left out, where --quick is given
        options: Those of `tyro.cli`

    Returns:
        An instance of the dataclass. Modules that the words name may be imported afterwards.
    """
    print_any_letter()
    given_words = sys.argv[1:] if args is None else args
    words = [re.sub(r"^(--[\w-]+=)~(?=/|$)", rf"\1{Path.home()}", word) for word in given_words]
    if example and not {"-h", "--help"}.isdisjoint(words):
        print(f"example: {example}\n")

    def refuse_mistake(mistake: mistakes.ParseErrorEvent) -> None:
        known = option_names(options.get("default", arguments))
        if problem := reworded(mistake, words, list(known)):
            refuse(problem)

    refuse_repeated(words)
    with mistakes.on_parse_error(refuse_mistake):
        parsed = tyro.cli(arguments, args=words, **options)
    trust(*words, *(word.partition("=")[2] for word in words))
    if getattr(parsed, "trust_code", False):
        trust(ANY)
    if getattr(parsed, "quick", False):
        changes = {name: value for name, value in quick.items() if getattr(parsed, name) == getattr(arguments, name)}
        print("a quick look, not a result to cite:", ", ".join(f"{name} {value}" for name, value in changes.items()))
        return dataclasses.replace(parsed, **changes)
    return parsed


def refuse_repeated(words: Sequence[str]) -> None:
    """Ends the process if an option is given twice, of which tyro would take the last."""
    names = [word.split("=")[0].replace("_", "-") for word in words if re.match(r"--[a-zA-Z]", word)]
    for name, times in Counter(name.replace("--no-", "--") for name in names).items():
        if times > 1:
            refuse(f"{name} is given twice, with or without --no: it must be given once, so leave one out")


def option_names(arguments: Any) -> Iterator[str]:
    """Yields the names of the options of a dataclass, or an instance of one, and of the dataclasses within."""
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name, field.default)
        if dataclasses.is_dataclass(value):
            yield from option_names(value)
        else:
            yield f"--{field.name.replace('_', '-')}"


def reworded(mistake: mistakes.ParseErrorEvent, words: Sequence[str], known: Sequence[str]) -> str:
    """Returns what is wrong with these words, the rule and the remedy; nothing for a mistake that only tyro words."""
    match mistake:
        case mistakes.UnrecognizedArgs(tokens=[word, *_]) if word.startswith("-"):
            return unknown("option", word.partition("=")[0], known)
        case mistakes.UnrecognizedArgs(tokens=[word, *_]):
            return f"{word} belongs to no option: values must follow the name of one, as in --name value"
        case mistakes.MissingArgs(missing_arguments=[missing, *_]):
            return f"{missing.arg.display_name()} is missing: it must be given"
        case mistakes.BadValue(argument=argument):
            return f"{argument.display_name()} has no value: it must be followed by one"
        case mistakes.InvalidChoice(argument=argument, value=value, choices=choices):
            rule = f"{did_you_mean(value, choices)}it must be one of {', '.join(map(repr, choices))}"
            return f"{argument.display_name()} is {value!r}: {rule}"
        case mistakes.InstantiationFailure(argument=None, message=message):  # by a check of a value
            return message
        case mistakes.InstantiationFailure(argument=argument) if argument:
            option, kind = argument.display_name(), str(argument.lowered.metavar)
            given = re.search(rf"{option.replace('-', '[-_]')}[ =](.*?)(?: --|$)", " ".join(words))
            rule = "a whole number, written as in 128" if "INT" in kind else "a number, written as in 0.001"
            rule = f"names, each with {rule}" if "STR" in kind else rule
            return f"{option} is {given[1] if given else ''!r}: it must be {rule}"
    return ""


def parse_preset(summaries: Mapping[str, str], arguments: Callable[[str], T], description: str) -> T:
    """Calls `parse` on the options behind the first word, which names a preset: a listed one, or one of your own.

    `arguments` gives those of a preset, which the options change. No other preset is imported.
    """
    name, *others = sys.argv[1:] or ["nothing"]
    script = Path(sys.argv[0]).name
    if name in ("-h", "--help"):
        presets = (f"  {preset:<28}{summary}" for preset, summary in summaries.items())
        print(f"example: {program('train')} quick --workdir runs/x", "", sep="\n")
        print(f"usage: {script} PRESET [OPTIONS]", "", description, "", *presets, sep="\n")
        print("", "PRESET --help lists the options of one.", sep="\n")
        raise SystemExit(0)
    try:
        if name not in PRESETS and ":" not in name and not is_file(name):
            rule = f"The first argument must be a preset, one of {', '.join(summaries)}"
            yours = "one of your own is written path/to/mine.py or my_module:CONFIG"
            raise Refusal(f"{unknown('preset', name, list(summaries))} {rule}; {yours}")
        default = arguments(name)
    except Refusal as error:
        refuse(str(error))
    options: dict[str, Any] = {"prog": f"{script} {name}", "description": summaries.get(name, description)}
    example = f"{program('train')} {name} --steps 2000 --workdir runs/x"
    return parse(type(default), others, example=example, default=default, **options)


def refuse(problem: str) -> NoReturn:
    """Ends a command line that cannot be read, in one line on stderr and with status 2."""
    print(f"error: {' '.join(problem.split())} (--help shows every option)", file=sys.stderr)
    raise SystemExit(2)


def each_once(option: str, values: Sequence[Any]) -> None:
    """Raises Refusal unless there are values, all different."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise Refusal(f"{option} has {twice[0]} twice: it must have each once, so leave one out")
    if not values:
        raise Refusal(f"{option} is '': name at least one, each once")


def normalizer_names(values: Sequence[str]) -> None:
    """Raises Refusal unless these are names to evaluate under: each once, or `all` by itself."""
    each_once("--normalizers", values)
    if "all" in values and len(values) > 1:
        raise Refusal(f"--normalizers is {' '.join(values)!r}: all must stand by itself, so leave the others out")


def within(option: str, value: int | float, least: int | float, most: int | float, example: object) -> None:
    """Raises Refusal unless a number lies between two others."""
    if not least <= value <= most:
        raise Refusal(f"{option} is {value}: it must be at least {least} and at most {most}, such as {example}")


def each_within(option: str, values: Sequence[int], least: int, most: int, example: int) -> None:
    """Raises Refusal unless there are numbers, such as lengths, all different and between two others."""
    each_once(option, values)
    for value in values:
        if not least <= value <= most:
            raise Refusal(f"{option} has {value}: each must be from {least} to {most}, such as {example}")
