"""Trains the model of a task."""

import dataclasses
import functools
from pathlib import Path

import tyro

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import check_directory, trust_option, typed_path
from softmax_jax.experiment.commands.parse import TrustCode, parse_preset
from softmax_jax.experiment.commands.process import KEPT, CompiledPrograms
from softmax_jax.experiment.configs import is_file, load_preset, preset_summaries
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import ALONE, Cluster, is_leader, join
from softmax_jax.experiment.training.progress import Log, plain_console
from softmax_jax.experiment.training.run_directory import load_checkpoint
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


def conclude(config: Config, workdir: Path) -> None:
    """Tests the trained models, draws how they were trained, and prints what came of it with the next command."""
    from softmax_jax.experiment.report.training import draw_training, learned, reached  # what draws loads a second

    with Log(functools.partial(print, flush=True), "testing the models and drawing their training"):
        results = reached(config, load_checkpoint(workdir)[1])
        if not is_leader():
            return
        picture = draw_training(workdir)
    plain_console().print(learned(results), highlight=False)
    print(f"Loss and accuracy by step: {typed_path(picture)}")
    print(f"Next: {program('evaluate')} --checkpoint {typed_path(workdir)}{trust_option(config)}")


def main() -> None:
    """Picks the preset, parses the options over it, trains."""
    with process.command():
        arguments = parse_preset(
            preset_summaries(),
            lambda name: Arguments(
                load_preset(name), Path("runs") / (Path(name).stem if is_file(name) else name.replace(":", "_"))
            ),
            "Train the model of a task. Options change a preset's settings.",
        )
        join(arguments.cluster)
        check_directory("--workdir", arguments.workdir)
        arguments.compiled.keep()
        train(arguments.config, arguments.workdir, plain_console(quiet=not is_leader()))
        conclude(arguments.config, arguments.workdir)
