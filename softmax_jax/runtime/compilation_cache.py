"""Compiled programs kept from one process to the next, and the time that compiling takes."""

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import tyro

LEAST_SECONDS = 0.1
"""Programs that compile faster than this are not worth a file."""

COMPILING = "/jax/core/compile/"
"""What JAX's events begin with while it traces, lowers and compiles, or reads a compiled program from disk."""


def default_directory() -> Path:
    """`softmax_jax` in the user's cache directory: `$XDG_CACHE_HOME`, or `~/.cache` if that is not an absolute path.

    Raises RuntimeError where the user has no home.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "softmax_jax"


def keep_compiled_programs(directory: Path | str | None = None, *, keep: bool = True) -> Path | None:
    """Keeps compiled programs in a directory and reads back those of earlier processes; the directory in use, if any.

    Call it before anything is compiled. The same program computes the same bits, whether compiled or read back. A
    directory that JAX's own settings name (as `JAX_COMPILATION_CACHE_DIR`) is used rather than the default. A directory
    that cannot be written means no cache, and so does `keep=False`. Neither is an error, and a damaged file is none.
    """
    if not keep:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if directory is None and chosen:
        return Path(chosen)
    try:
        path = Path(directory or default_directory()).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, RuntimeError):
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    # A full disk or a damaged file costs the time to compile, which is nothing to warn of.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    return path


@dataclasses.dataclass(frozen=True)
class CompiledPrograms:
    """What a command line may say of compiled programs."""

    compilation_cache: Path | None = None
    """Directory that keeps compiled programs from run to run; softmax_jax in the user's cache directory by default."""
    no_compilation_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no compiled program and use none that was kept."""

    def keep(self) -> None:
        """Does as the command line says."""
        keep_compiled_programs(self.compilation_cache, keep=not self.no_compilation_cache)


KEPT = CompiledPrograms()


class CompileTime:
    """Seconds in which something was compiling. Work that overlaps, in threads or nested, is counted once.

    >>> with CompileTime() as compiling:
    ...     _ = jax.jit(lambda x: x + 1.0)(1.0)
    >>> 0 < compiling.seconds < 60
    True
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "CompileTime":
        jax.monitoring.register_event_duration_secs_listener(self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(AssertionError):  # jax.clear_event_listeners may have been called
            jax.monitoring.unregister_event_duration_listener(self._record)

    def _record(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith(COMPILING):
            end = time.perf_counter()
            with self._lock:
                self._spans.append((end - duration_secs, end))

    @property
    def seconds(self) -> float:
        """So far."""
        with self._lock:
            return covered(self._spans)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of some intervals.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
