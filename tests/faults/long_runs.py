"""Evaluates the shipped models at random lengths for a long time, and watches memory and compiled programs.

    python -m tests.faults.long_runs 30

Prints a line a minute and, at the end, a JSON object with what test_long_runs judges.
"""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS, evaluate
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.run_directory import load_checkpoint

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "paper_float32"
LONGEST = 20_000
"""Beyond `LONGEST_WHOLE`, so that both ways of encoding sets are run."""
WARM_UP = 0.2
"""Share of the time whose memory is not judged: the allocator settles."""


class Compilations:
    """Counts the programs that XLA compiles while it is entered, those of single operations too."""

    def __enter__(self) -> "Compilations":
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def slope(minutes, megabytes) -> float:
    """Megabytes a minute, by least squares."""
    return float(np.polyfit(minutes, megabytes, 1)[0])


def run(minutes: float) -> dict[str, float]:
    config, parameters = load_checkpoint(SHIPPED)
    seeds = config.all_seeds
    parameters = jax.tree.map(lambda leaf: leaf[:1], parameters)
    named = {name: normalizer(name) for name in DEFAULT_NORMALIZERS}

    def measure(lengths) -> None:
        list(evaluate(parameters, named, seeds=seeds[:1], lengths=lengths, sets=4))

    buckets = sorted({MaxRetrieval().room(items) for items in range(1, LONGEST + 1)})
    with Compilations() as first:
        for items in buckets:
            measure((items,))
    random = np.random.default_rng(0)
    samples, lengths_seen, start, told = [], set(), time.monotonic(), 0.0
    with Compilations() as later:
        while (now := (time.monotonic() - start) / 60) < minutes:
            drawn = np.exp(random.uniform(0, np.log(LONGEST + 1), 4)).astype(int)
            lengths = tuple(dict.fromkeys(drawn.tolist()))  # short ones are drawn twice now and then
            measure(lengths)
            lengths_seen |= set(lengths)
            samples.append((now, resident_megabytes()))
            if now >= told:
                told = int(now) + 1
                print(f"{now:5.1f} minutes: {samples[-1][1]:.1f} MB, {len(samples)} evaluations", flush=True)
    judged = [sample for sample in samples if sample[0] >= WARM_UP * minutes]
    return {
        "minutes": minutes,
        "cpu_minutes": time.process_time() / 60,
        "evaluations": len(samples),
        "lengths": len(lengths_seen),
        "buckets": len(buckets),
        "programs_of_the_buckets": first.count,
        "programs_after": later.count,
        "megabytes_at_first": float(np.mean([size for _, size in judged[: len(judged) // 10]])),
        "megabytes_at_last": float(np.mean([size for _, size in judged[-(len(judged) // 10) :]])),
        "megabytes_a_minute": slope(*np.transpose(judged)),
    }


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]))))
