"""What the benchmarks share: taking turns, contenders in processes of their own, and the form of a result."""

import contextlib
import dataclasses
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.commands.process import KEPT, one_line_errors
from softmax_jax.normalizers.checks import one_of
from softmax_jax.refusal import Refusal

LOAD_BEFORE = round(os.getloadavg()[0], 1)
"""How busy the machine was in the minute before the benchmark: processes that ran or waited."""


class Grown(NamedTuple):
    """Which point of a line a time is: the cost of what, by which of its sizes, at what size."""

    what: str
    by: str
    size: int


@dataclasses.dataclass(frozen=True)
class Result:
    """Times of ours and of a peer, in seconds, one of each per round of the same run."""

    name: str
    """What was done, as "a training step"."""
    peer: str
    """What it is compared with."""
    ours: Sequence[float]
    peers: Sequence[float]
    unit: str
    """What takes that many seconds, as "s per step"."""
    grown: Grown | None = None
    """Of a time that shows with others how cost grows; the peer is then the floor."""

    def ratios(self) -> tuple[float, float, float]:
        """How many times faster than the peer: least and most of any round, and between them that of the medians."""
        rounds = [peer / ours for ours, peer in zip(self.ours, self.peers, strict=True)]
        return min(rounds), statistics.median(self.peers) / statistics.median(self.ours), max(rounds)

    def record(self) -> dict[str, Any]:
        """The line of a result file: medians, their ratio, and how busy the machine was before."""
        grown = {} if self.grown is None else {"grown": self.grown._asdict()}
        return grown | {
            "name": self.name,
            "peer": self.peer,
            "ratio": self.ratios()[1],
            "ours_seconds": statistics.median(self.ours),
            "peer_seconds": statistics.median(self.peers),
            "unit": self.unit,
            "load_before": LOAD_BEFORE,
        }


def results_against(name: str, ours: str, seconds: Mapping[str, Sequence[float]], unit: str) -> list[Result]:
    """A result for every contender but ours."""
    return [Result(name, peer, seconds[ours], times, unit) for peer, times in seconds.items() if peer != ours]


def processor_time(run: Callable[[], Any]) -> Callable[[], float]:
    """Returns a function that runs it once and returns the seconds of all cores, which other processes change less."""

    def seconds() -> float:
        start = time.process_time()
        jax.block_until_ready(run())
        return time.process_time() - start

    return seconds


def take_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each run returns, round after round, so that slow phases of the machine meet all."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(run())
    return seconds


def timed(run: Callable[[], Any], per: float = 1) -> Callable[[], float]:
    """A function that runs it once and returns the seconds, divided by `per`."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return (time.perf_counter() - start) / per

    return seconds


class Contender:
    """A process that measures one thing each time it is asked; its device settings and its memory are its own.

    `python -m MODULE --contender NAME` must call `serve`. Raises RuntimeError when the process ends early.
    """

    def __init__(self, module: str, name: str):
        self._name = name
        command = [sys.executable, "-m", module, "--contender", name]
        # A GPU is shared by all contenders, of which JAX would otherwise give each most of the memory.
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def measure(self) -> float:
        """Seconds of one turn."""
        return self._ask("measure")

    def peak_bytes(self) -> int:
        """The most memory the process has held; waits until it has compiled."""
        return int(self._ask("memory"))

    def _ask(self, what: str) -> float:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(what + "\n")
            stdin.flush()
            return float(stdout.readline())
        except (OSError, ValueError):
            raise RuntimeError(f"the contender {self._name!r} ended before it was measured; see above") from None

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.communicate()


def processes_in_turn(module: str, names: Sequence[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Times of a module's contenders, each in a process of its own, and the bytes of memory each took at most."""
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(Contender(module, name)) for name in names}
        for process in processes.values():
            process.peak_bytes()  # comes when it has compiled, so that no turn falls into another's compiling
        seconds = take_turns({name: process.measure for name, process in processes.items()}, rounds)
        return seconds, {name: process.peak_bytes() for name, process in processes.items()}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line of a benchmark with contenders may say."""

    quick: bool = False
    """Fewer rounds."""
    contender: str | None = None
    """Measure this one whenever a line comes in; what the benchmark calls itself with."""


def contest(
    measure: Callable[[bool], Sequence[Result]],
    contenders: Mapping[str, Callable[[], Callable[[], float]]],
    description: str | None,
) -> None:
    """The command of a benchmark: measures all contenders and prints the ratios, or serves as one of them."""
    arguments = parse(Arguments, description=description)
    if arguments.contender is not None:
        with one_line_errors():
            one_of("--contender", arguments.contender, contenders)
        KEPT.keep()
        serve(contenders[arguments.contender]())
        return
    print_results(measure(arguments.quick))
    print(machine())


def serve(run: Callable[[], float]) -> None:
    """Answers the questions of a `Contender` until it closes the pipe."""
    run()
    for line in sys.stdin:
        print(json.dumps(run() if line.strip() == "measure" else peak_bytes()), flush=True)


def peak_bytes() -> int:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def print_results(results: Sequence[Result]) -> None:
    """Every ratio with its peer, and the times of both."""
    table = Table("what", "peer", "times faster: min", "median", "max", "ours: min", "median", "max", "peer: median")
    for result in results:
        ratios = [f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}" for ratio in result.ratios()]
        ours = (min(result.ours), statistics.median(result.ours), max(result.ours))
        times = [duration(seconds) for seconds in (*ours, statistics.median(result.peers))]
        table.add_row(result.name, result.peer, *ratios, *times)
    Console(width=160).print(table)


def duration(seconds: float) -> str:
    """Three digits in the unit that suits them.

    >>> duration(0.00214), duration(2.5), duration(1290)
    ('2.14 ms', '2.50 s', '21.5 min')
    """
    for least, factor, unit in ((120, 1 / 60, "min"), (1, 1, "s"), (1e-3, 1e3, "ms"), (0, 1e6, "µs")):
        if seconds >= least:
            value = seconds * factor
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    raise Refusal(f"a duration is {seconds}: it must be at least 0")


def milliseconds(seconds: Sequence[float], digits: int) -> list[str]:
    """Cells with the least, the median and the most of some times."""
    return [f"{1000 * value:.{digits}f}" for value in (min(seconds), statistics.median(seconds), max(seconds))]


VECTORS = {"amx_tile": "avx-512-amx", "avx512f": "avx-512", "avx2": "avx2"}
"""Sets of instructions by their flag on Linux, the newest first; times of different kinds of CPU differ threefold."""


def device_name() -> str:
    """The device in a file's name: nvidia-h200, or 2-cpu-cores-avx2 by the newest instructions of its cores."""
    device = jax.devices()[0]
    name = device.device_kind
    if device.platform == "cpu":
        cpu = Path("/proc/cpuinfo")
        flags = cpu.read_text().split() if cpu.exists() else []
        vectors = [called for flag, called in VECTORS.items() if flag in flags]
        name = "-".join([f"{os.cpu_count()}-cpu-cores", *vectors[:1]])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def machine() -> str:
    """The day and the machine, as a line under a table."""
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, {platform.machine()}, jax {jax.__version__}"
