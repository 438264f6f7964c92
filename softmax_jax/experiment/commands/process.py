"""The process of a command: its devices, its compiled programs, and how it ends."""

import atexit
import contextlib
import dataclasses
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import tyro

from softmax_jax.experiment.commands.output import ended_by_reader
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.refusal import NotFiniteError, Refusal


@dataclasses.dataclass(frozen=True)
class CompiledPrograms:
    """Options for compiled programs."""

    compilation_cache: Path | None = None
    """Directory that keeps compiled programs from run to run; softmax_jax in the user's cache directory by default."""
    no_compilation_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no compiled program and use none that was kept."""

    def keep(self) -> None:
        """Keeps compiled programs and reads back those of earlier processes; call it before anything is compiled.

        A directory that JAX's own settings name, such as `JAX_COMPILATION_CACHE_DIR`, goes before the default. One
        that cannot be written means no cache, which costs the time to compile and is nothing to warn of.
        """
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        chosen = self.compilation_cache or jax.config.values["jax_compilation_cache_dir"] or Path(base, "softmax_jax")
        jax.config.update("jax_enable_compilation_cache", not self.no_compilation_cache)
        jax.config.update("jax_compilation_cache_dir", str(chosen))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


KEPT = CompiledPrograms()


@contextlib.contextmanager
def command(device_per_core: bool = True) -> Iterator[None]:
    """Runs what is within as a command: bad input ends in one line, and a reader that stops ends it quietly.

    `device_per_core` makes every CPU core a device, which is faster where seeds divide among them.
    """
    atexit.register(gc.freeze)  # or the interpreter looks through every object once more at its end, for 0.8 s
    if device_per_core:
        one_device_per_core()
    with ended_by_reader(), one_line_errors():
        yield


def one_device_per_core() -> None:
    """Makes every CPU core a device of its own; call it before JAX first touches a device.

    Seeds are independent, so a core each beats all cores at one matrix product. Other platforms are not affected,
    nor is anyone who chose their own XLA_FLAGS.
    """
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        jax.config.update("jax_num_cpu_devices", len(usable))


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends bad input in one line on stderr with status 2, a loss that is not finite with 1, a stopped run with 130."""
    try:
        yield
    except NotFiniteError as error:
        problem, status = str(error), 1
    except Refusal as refusal:
        problem, status = " ".join(str(refusal).split()), 2
    except (MemoryError, RuntimeError, AssertionError) as error:
        if not (problem := memory_problem(error) or device_problem()):
            raise
        status = 2
    except KeyboardInterrupt as interruption:
        print(*interruption.args, end="\n" * bool(interruption.args), file=sys.stderr)
        raise SystemExit(130) from None
    else:
        return
    plain_console(stderr=True).print(f"error: {problem}", style="red", soft_wrap=True, highlight=False)
    raise SystemExit(status)


def memory_problem(error: BaseException) -> str:
    """Returns that there was too little memory, where the error says so, or nothing."""
    words = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in words:
        return f"this takes more memory than there is ({words}): ask for fewer sets or seeds at once"
    return ""


def device_problem() -> str:
    """Returns why there is no device to compute on, or nothing. JAX tells by an error of any of these kinds."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        platforms = jax.config.values["jax_platforms"]
        return f"JAX_PLATFORMS is {platforms!r}, and JAX finds no such device here: leave it out, or install one"
    return ""
