"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS, evaluate, frame_of
from softmax_jax.measures.fits import named_normalizers
from softmax_jax.measures.sets import NOTEBOOK_LENGTHS, numbered_key
from softmax_jax.measures.table import EVALUATION
from softmax_jax.report.accuracy import show_and_write
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import CompileTime, keep_compiled_programs
from softmax_jax.runtime.distributed import ALONE, Cluster, is_leader, joined
from softmax_jax.training.config import changed
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)" "temperature(0.2)"; or "all" of them."""
    lengths: tuple[int, ...] = ()
    """Items per set; of max retrieval 2, 4, … 16384 by default (4096 under the notebook protocol)."""
    sets: int = 512
    """Sets per seed and length."""
    key: int = 0
    """Number of another draw of sets. 0 is that of every table; 1 and 2 are those of fit_temperature.py."""
    matmul: str | None = None
    """What products round to, if not to what they did in training: float32, tensorfloat32, bfloat16, float8_e4m3."""
    rounded: str | None = None
    """Which products, if not those of training: inputs, dense or all."""
    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    output: Path = Path("evaluation")
    """Directory for evaluation.csv, evaluation.json and the chart."""
    protocol: Literal["fresh", "notebook"] = "fresh"
    """fresh: new sets for every seed and length. notebook: the published recreation's stream of sets, whose
    accuracies compare with tables made from it (11 keys of 32 sets; --sets does not apply)."""
    compilation_cache: Path | None = None
    """Directory that keeps compiled programs from run to run; softmax_jax in the user's cache directory by default."""
    no_compilation_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no compiled program and use none that was kept."""
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE

    def __post_init__(self) -> None:
        command_line.each_within("--lengths", self.lengths or NOTEBOOK_LENGTHS, 1, 2**20, 1024)
        command_line.within("--sets", self.sets, 1, 2**20, 512)
        command_line.within("--key", self.key, 0, 2**31 - 1, 3)
        for name, given, own in (("sets", self.sets, "its own 32"), ("key", self.key, "keys of its own")):
            if self.protocol == "notebook" and given != getattr(Arguments, name):
                raise ValueError(f"--{name} is {given}: --protocol notebook must have {own}, so leave --{name} out")
        command_line.normalizer_names(self.normalizers)
        command_line.check_directory("--output", self.output)


def main() -> None:
    """Loads, measures, prints, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with command_line.one_line_errors(Console(stderr=True)), joined(asked.cluster), CompileTime() as compiling:
        config, parameters = load_checkpoint(asked.checkpoint)
        precision = {"matmul": asked.matmul, "rounded": asked.rounded}
        config = changed(config, **{name: value for name, value in precision.items() if value})
        named = named_normalizers(asked.normalizers, asked.checkpoint, parameters, config.normalizer)
        keep_compiled_programs(asked.compilation_cache, keep=not asked.no_compilation_cache)
        lengths = asked.lengths or (NOTEBOOK_LENGTHS if asked.protocol == "notebook" else config.task.test_lengths)
        options: dict[str, Any] = {"seeds": config.all_seeds, "lengths": lengths, "sets": asked.sets}
        options |= {"protocol": asked.protocol, "key": numbered_key(asked.key)}
        options |= {"measures": (*EVALUATION, "extrapolated"), "task": config.task, "trained_under": config.normalizer}
        start, measured = time.perf_counter(), evaluate(parameters, named, **options)
        if not is_leader():
            for _ in measured:  # its share of the work
                pass
            return
        frame = frame_of(command_line.with_progress(measured, lengths, "measuring"))
        took = f"{time.perf_counter() - start:.0f} s ({compiling.seconds:.1f} s of them with a program being compiled)"
        settings = dataclasses.asdict(asked) | {"seeds": config.all_seeds}
        paths = show_and_write(asked.output, settings, frame, config.task)
        print(f"evaluated {config.seeds} seeds in {took}; wrote {', '.join(map(str, paths))}")


if __name__ == "__main__":
    main()
