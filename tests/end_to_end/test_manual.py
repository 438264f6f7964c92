"""Every command of README.md and docs/commands.md is typed, with every one that it recommends, and README shows it.

They are typed in a path with a blank and an umlaut, from the checkout and from a wheel.
"""

import itertools
import re
import shlex
from pathlib import Path

import jax
import polars as pl
import pytest

from softmax_jax.experiment.commands import __main__ as installed
from softmax_jax.experiment.measures.refit import BEST_OF_ALL
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.temperature import gains_of, what_was_fitted
from softmax_jax.experiment.report.training import Reached, learned
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.temperature import ALL_LENGTHS, TemperatureFit
from tests.end_to_end.shell import SCRIPTS, Shell
from tests.end_to_end.test_command_lines import ROOT, TINY
from tests.msgpack import to_bytes

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(?:pip .* && )?((?:python|softmax-jax) .*)$", re.MULTILINE)
MANUAL = [README, (ROOT / "docs" / "commands.md").read_text()]
LINES = [line for page in MANUAL for block in BLOCK.findall(page) for line in COMMAND.findall(block)]
ELSEWHERE = {
    "rank": "tests/experiment/board/test_rank.py",
    "language-model": "tests/models/test_language_models.py",
    "check_vectors": "tests/library/laws/test_vectors.py",
    "vectors": "tests/library/laws/test_vectors.py",
}
"""Commands that other tests type, as they need a model, functions of another framework, or minutes."""
TRANSFORMER = "--steps 2 --chunk 2 --batch 2 --length 4 --hidden 8 --heads 2 --layers 1 --queries 2"
SMALL = "--lengths 4 16 --sets 4"
SMALLER = {
    "train": shlex.join([*TINY, "--seeds", "2"]),
    "evaluate": SMALL,
    "fit": f"{SMALL} --degree 1 --criterion inputs",
    "report": SMALL,
    "shootout": "--seeds 1 --epochs 1 --length 4 --hidden 8 --heads 2 --test-lengths 8",
    "check": "",
}
"""Options that make a command a matter of seconds. They take the place of what the manual says of sizes."""
FEWER = {"report": "--normalizers softmax hardmax", "shootout": "--normalizers softmax ssmax"}
"""Options for where a line has none of that name."""
NEED_CHECKPOINTS = {"evaluate", "fit"}
"""Commands that the manual also shows without a run. Only the repository has the models that they take then."""
RELU = re.search(r"```python\n(import jax\n.*?)sj\.register", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d")
ALIKE = {
    TIME: "TIME",
    re.compile(r"\bruns/(?:quick|x|y)\b"): "RUN",
    re.compile(r"\bruns/(?:sort|shootout/[\w-]+/[\w-]+)\b"): "TRANSFORMER",
    re.compile(r"TRANSFORMER(?: TRANSFORMER)+"): "TRANSFORMERS",
}
"""What tells a line from others that need not be typed, too: the time, and which of like runs."""


def options(words: list[str]) -> dict[str, list[str]]:
    """The words by their option; those before any option are under ""."""
    by_option: dict[str, list[str]] = {"": []}
    for word in words:
        if word.startswith("--"):
            by_option[word] = []
        else:
            by_option[list(by_option)[-1]].append(word)
    return by_option


def words_of(line: str) -> tuple[str, list[str]]:
    """The command of a line, whichever way it is called, and its arguments, made small."""
    _, called, *arguments = shlex.split(line, comments=True)
    stem = Path(called).stem
    command = {script: name for name, script in SCRIPTS.items()}.get(stem, stem)
    smaller = TRANSFORMER if arguments[:1] == ["sort"] else SMALLER.get(command, "")
    words = [FEWER.get(command, "").split(), arguments, smaller.split()]  # the later go before
    merged = {option: values for part in words for option, values in options(part).items() if option or values}
    return command, [word for option in sorted(merged) for word in (option, *merged[option]) if word]


def form(command: str, arguments: list[str]) -> str:
    """The line in the words that it has in common with all that are like it."""
    line = shlex.join([command, *arguments])
    for words, name in ALIKE.items():
        line = words.sub(name, line)
    return line


def fill(place: Path) -> None:
    """Writes the files that the manual takes for given."""
    assert RELU
    (place / "my_module.py").write_text(f"{RELU[1]}\nrelu = Relu()\n", encoding="utf-8")
    parameters = jax.tree.map(lambda leaf: leaf[0], load_checkpoint(SHIPPED / "paper")[1])
    (place / "parameters.msgpack").write_bytes(to_bytes(parameters))


def test_the_manual_names_commands_that_are_there():
    commands = {command for command, _ in map(words_of, LINES)}
    assert commands == SMALLER.keys() | ELSEWHERE.keys()
    assert commands - {"check_vectors"} <= set(installed.COMMANDS)
    assert all((ROOT / file).is_file() for file in ELSEWHERE.values())
    called = [shlex.split(line, comments=True)[1] for line in LINES if line.startswith("python ")]
    assert all((ROOT / name).is_file() for name in called if name != "vectors/check_vectors.py")


@pytest.mark.rare
@pytest.mark.parametrize("shell", ["checkout", "wheel"], indirect=True)
def test_every_command_of_the_manual_and_that_these_recommend_is_typed(shell: Shell):
    fill(shell.place)
    waiting = ["python train.py quick --workdir runs/y", *LINES]
    typed, refused, silent, forms = set(), set(), set(), set()
    for line in waiting:  # which grows
        command, arguments = words_of(line)
        known = command != "train" and form(command, arguments) in forms
        if known or command in ELSEWHERE or (command == "check" and not shell.installed):
            continue
        forms.add(form(command, arguments))
        said = shell.type(shell.called(command), *arguments)
        typed.add(command)
        if shell.installed and "the trained models come with the repository" in said.stderr:
            refused.add(command)
            continue
        assert said.status == 0, (line, said.stderr)
        if said.stdout.count("Next: ") != 1:
            silent.add(command)
            continue
        assert shlex.split(said.following)[:2] in [shell.called(command) for command in installed.COMMANDS]
        waiting.append(said.following)
    assert typed == SMALLER.keys() - ({"check"} if not shell.installed else set())
    assert refused == (NEED_CHECKPOINTS if shell.installed else set())
    assert silent <= {"check"}


NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)*(?:e-?\d+)?")
WITH_HALF = re.compile(r"([+-]?\d+\.\d+) ± (\d+\.\d+)")
RIVALS = re.compile(r"\b(adaptive|ssmax)\b(?=[.,: ])")
"""Normalizers that are not told apart: either may gain most."""
SHOWN = re.findall(r"```bash\npython (\w+)\.py *(\w*) .*?```\n+```text\n(.*?)```", README, re.DOTALL)
"""The commands of README whose last lines it shows: script, arguments and these lines, but for some paragraphs."""


def shape(text: str) -> str:
    """The words of an output without what chance or the machine decides: numbers, which of two rivals, line ends."""
    words = NUMBER.sub("0", TIME.sub("TIME", text.replace(f"{ROOT}/", "")))
    words = words.replace("(not beyond", "(beyond").replace("not shown", "shown")
    return " ".join(re.sub(r"(?:0|no) (gain|loss)(?:es|s)?\b", r"0 \1", re.sub(RIVALS, "RIVAL", words)).split())


def assert_shows(block: str, printed: str) -> None:
    """Each paragraph of a block has the words of one that was printed, and its gains lie within their intervals."""
    *paragraphs, last = block.split("\n\n")
    parts = [*printed.split("\n\n"), *printed.splitlines()]
    for shown in [*paragraphs, *last.splitlines()]:
        alike = [part for part in parts if shape(shown) in shape(part)]
        assert alike, (shape(shown), shape(printed))
        for (gain, half), (printed_gain, _) in zip(WITH_HALF.findall(shown), WITH_HALF.findall(alike[0])):
            assert abs(float(printed_gain) - float(gain)) <= float(half), (shown, alike[0])


def test_readme_shows_what_training_says():
    ((_, _, block),) = (shown for shown in SHOWN if shown[0] == "train")
    sentences = block.partition("Loss and accuracy")[0]
    right, length, untrained, sets, far, _, beyond = (float(number) for number in NUMBER.findall(sentences))
    at_both = [(length, right), (far, beyond)]
    results = [Reached(int(n), int(sets), [accuracy], [untrained]) for n, accuracy in at_both]
    assert learned(results).split() == sentences.split()


def test_readme_shows_what_a_fit_says():
    ((_, _, block),) = (shown for shown in SHOWN if shown[0] == "fit_temperature")
    fit = TemperatureFit.load(SHIPPED / "paper" / "temperature.json")
    cells = itertools.product((ALL_LENGTHS, BASELINE, BEST_OF_ALL), range(10), (16, 64))
    rows = [(name, seed, n, float(len(name) + seed % len(name))) for name, seed, n in cells]
    compared = pl.DataFrame(rows, ["normalizer", "seed", "n", "accuracy"], orient="row")
    said = [what_was_fitted(fit, {}, 4, 64), *gains_of(ALL_LENGTHS, fit, compared)]
    assert shape(block.partition("\n\n")[0]) == shape(" ".join(said))


@pytest.mark.parametrize("shell", ["checkout"], indirect=True)
@pytest.mark.parametrize(
    ("script", "smaller"),
    [
        pytest.param("evaluate", "--lengths 16 512 1024", marks=pytest.mark.full),
        pytest.param("fit_temperature", "", marks=pytest.mark.rare),
        pytest.param("train", "", marks=pytest.mark.rare),
    ],
)
def test_readme_shows_the_last_lines_of_its_commands(script: str, smaller: str, shell: Shell):
    ((_, arguments, block),) = (shown for shown in SHOWN if shown[0] == script)
    said = shell.type(["python", str(ROOT / f"{script}.py")], *arguments.split(), *smaller.split())
    assert said.status == 0, said.stderr
    assert_shows(block, said.stdout)
