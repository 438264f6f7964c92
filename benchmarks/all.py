"""Every benchmark, one after the other: each ratio with its peer from the same run, and a file with the results.

    python -m benchmarks.all --quick

Writes benchmarks/results/DATE-DEVICE.json, a list of {name, peer, ratio, ours_seconds, peer_seconds, unit,
load_before} with medians; a ratio says how many times faster than the peer ours is, and the load is that of the machine
in the minute before. Times that show how cost grows say of what, by which of its sizes, and at what size.
`python -m benchmarks.table` makes tables of such files.
"""

import dataclasses
import statistics
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Result, device_name, machine, print_results
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import UnlessGiven, each_once, parse, within
from softmax_jax.files import write_json
from softmax_jax.normalizers.checks import one_of

MODULES = ("training", "seeds", "evaluation", "attention", "sparse", "swapping", "growth")
"""Each has a function `measure(quick: bool) -> list[Result]`."""
RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    quick: bool = False
    """Fewer rounds: under ten minutes on two cores."""
    only: UnlessGiven[tuple[str, ...]] = ()
    """Names of benchmarks, all by default. Their results alone are in the file."""
    repeats: int = 1
    """Runs of each benchmark, of which the fastest of ours counts, with its peers."""
    output: Path = RESULTS
    """Directory of the result file."""

    def __post_init__(self) -> None:
        for name in self.only:
            one_of("--only", name, MODULES)
        if self.only:
            each_once("--only", self.only)
        within("--repeats", self.repeats, 1, 100, 3)
        check_directory("--output", self.output)


def measure_all(names: tuple[str, ...], quick: bool, repeats: int) -> list[Result]:
    """The results of these benchmarks, less those that do not exist; of repeated runs of each, the fastest of ours."""
    results = []
    for name in names:
        if find_spec(f"benchmarks.{name}") is None:
            continue
        start = time.perf_counter()
        module = import_module(f"benchmarks.{name}")
        runs = [module.measure(quick) for _ in range(repeats)]
        results += [min(same, key=lambda result: statistics.median(result.ours)) for same in zip(*runs, strict=True)]
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return results


def main() -> None:
    """Measures, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    results = measure_all(arguments.only or MODULES, arguments.quick, arguments.repeats)
    print_results(results)
    print(machine())
    path = arguments.output / f"{time.strftime('%Y-%m-%d')}-{device_name()}.json"
    write_json(path, [result.record() for result in results])
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
