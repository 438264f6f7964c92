"""What the command lines share: the machine they run on, and how they say that something is wrong."""

import contextlib
import os
from collections.abc import Iterator

import jax
from rich.console import Console


def one_device_per_core() -> None:
    """Makes every CPU core a device of its own; call it before JAX first touches a device.

    Seeds are independent, so a core each beats all cores at one matrix product: 1.8 ms a step and seed
    against 2.7 ms on 2 cores. Other platforms are not affected, nor is anyone who chose their own XLA_FLAGS.
    """
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        jax.config.update("jax_num_cpu_devices", len(usable))


@contextlib.contextmanager
def one_line_errors(console: Console) -> Iterator[None]:
    """Turns bad input into one line on stderr and exit status 2, Ctrl-C into 130."""
    try:
        yield
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False, highlight=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
