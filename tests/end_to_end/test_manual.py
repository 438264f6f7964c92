"""Every command of README.md and docs/commands.md is typed, in their order, in a path with a blank and an umlaut."""

import re
import runpy
import shlex
import sys

import jax
import pytest

from softmax_jax.experiment.commands import __main__ as installed
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from tests.end_to_end.test_command_lines import ROOT, TINY
from tests.msgpack import to_bytes

BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(?:pip .* && )?((?:python|softmax-jax) .*)$", re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "docs" / "commands.md"]
LINES = [line for page in PAGES for block in BLOCK.findall(page.read_text()) for line in COMMAND.findall(block)]
ELSEWHERE = {
    "language-model": "tests/models/test_language_models.py",
    "vectors/check_vectors.py": "tests/library/laws/test_vectors.py",
    "vectors": "tests/library/laws/test_vectors.py",
}
"""Commands that other tests type, as they need a model, functions of another framework, or a minute."""
TRANSFORMER = "--steps 2 --chunk 2 --batch 2 --length 4 --hidden 8 --heads 2 --layers 1 --queries 2"
SMALL = "--lengths 4 16 --sets 4"
SMALLER = {
    "train.py": shlex.join([*TINY, "--seeds", "2"]),
    "evaluate.py": SMALL,
    "fit_temperature.py": f"{SMALL} --degree 1 --criterion inputs",
    "report.py": SMALL,
    "shootout.py": "--seeds 1 --epochs 1 --length 4 --hidden 8 --heads 2 --test-lengths 8",
    "check": "",
}
"""Options that make a command a matter of seconds. They take the place of what the manual says of sizes."""
RELU = re.search(r"```python\n(import jax\n.*?)sj\.register", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)


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
    """The script or command of a line, and its arguments, made small."""
    name, *arguments = shlex.split(line, comments=True)[1:]
    smaller = TRANSFORMER if arguments[:1] == ["sort"] else SMALLER.get(name, "")
    merged = options(arguments) | {option: values for option, values in options(smaller.split()).items() if option}
    return name, [word for option, values in merged.items() for word in (option, *values) if word]


def test_the_manual_names_commands_that_are_there():
    names = {name for name, _ in map(words_of, LINES)}
    assert names == SMALLER.keys() | ELSEWHERE.keys()
    assert all((ROOT / name).is_file() or name in installed.COMMANDS for name in names - {"vectors/check_vectors.py"})


@pytest.mark.rare
def test_every_command_of_the_manual_is_typed(tmp_path, monkeypatch, capfd):
    place = tmp_path / "mein Täst"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    assert RELU
    (place / "my_module.py").write_text(f"{RELU[1]}\nrelu = Relu()\n", encoding="utf-8")
    parameters = jax.tree.map(lambda leaf: leaf[0], load_checkpoint(SHIPPED / "paper")[1])
    (place / "parameters.msgpack").write_bytes(to_bytes(parameters))
    typed = []
    runs = ["python train.py quick --workdir runs/y", *LINES]
    for name, arguments in map(words_of, runs):
        if name in ELSEWHERE:
            assert (ROOT / ELSEWHERE[name]).is_file()
            continue
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", [name if name.endswith(".py") else "softmax-jax", *arguments])
        try:
            if name.endswith(".py"):
                runpy.run_path(str(ROOT / name), run_name="__main__")
            else:
                sys.argv.insert(1, name)
                installed.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        said = capfd.readouterr()
        assert status == 0, (name, arguments, said.err)
        typed.append((name, said.out.count("Next: ")))
    assert {name for name, _ in typed} == SMALLER.keys()
    assert all(count == 1 for name, count in typed if name != "check")
