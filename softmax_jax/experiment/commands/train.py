"""Trains the model of a task."""

import dataclasses
from pathlib import Path

import tyro

from softmax_jax.experiment.commands.output import check_directory, ended_by_reader, program, trust_option, typed_path
from softmax_jax.experiment.commands.parse import TrustCode, parse_preset
from softmax_jax.experiment.commands.process import KEPT, CompiledPrograms, one_device_per_core, one_line_errors
from softmax_jax.experiment.configs import is_file, load_preset, preset_summaries
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import ALONE, Cluster, is_leader, join
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.train import train


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    config: tyro.conf.OmitArgPrefixes[Config]
    workdir: Path
    """Directory of the run; a run that it holds is continued."""
    trust_code: TrustCode = False
    compiled: tyro.conf.OmitArgPrefixes[CompiledPrograms] = KEPT
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE


@ended_by_reader()
def main() -> None:
    """Picks the preset, parses the options over it, trains."""
    arguments = parse_preset(
        preset_summaries(),
        lambda name: Arguments(
            load_preset(name), Path("runs") / (Path(name).stem if is_file(name) else name.replace(":", "_"))
        ),
        "Train the model of a task. Options change a preset's settings.",
    )
    workdir = arguments.workdir
    one_device_per_core()
    with one_line_errors():
        join(arguments.cluster)
        check_directory("--workdir", workdir)
        arguments.compiled.keep()
        train(arguments.config, workdir, plain_console(quiet=not is_leader()))
        if is_leader():
            run_typed = typed_path(workdir) + trust_option(arguments.config)
            print(f"trained to the end; evaluate with: {program('evaluate')} --checkpoint {run_typed}")
