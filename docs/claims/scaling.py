"""Claims of the page on scaling, from one run on a machine with AVX-512 and one on an H100."""

from collections.abc import Iterator

import polars as pl

from docs.claims import read
from softmax_jax.attention.attention import ACCELERATOR_STREAM_ABOVE, STREAM_ABOVE

PAGE = "docs/scaling.md"
CPU, GPU = "2 cpu cores avx 512,", "nvidia h100"


def _compared(name: str, peer: str, machine: str = CPU) -> dict[str, float]:
    """Returns the row of what is compared with a peer on a machine."""
    rows = read("scaling/benchmarks.csv").filter(
        pl.col("name").str.starts_with(name), pl.col("measured").str.contains(machine), peer=peer
    )
    return rows.row(0, named=True)


def a_training_step() -> Iterator[tuple[str, str]]:
    step = "a training step of one seed"
    products = _compared(step, "its matrix products alone")
    times = f"{1000 * products['ours_seconds']:.2f} ms: {1 / products['ratio']:.1f} × the time of its matrix products"
    yield PAGE, f"# A training step takes {1 / products['ratio']:.1f} × the time of its matrix products"
    port, torch = (_compared(step, peer)["ratio"] for peer in ("a plain port", "PyTorch"))
    gpu = _compared("10 seeds of 100,000 steps", "their matrix products alone", GPU)["ours_seconds"]
    yield (
        PAGE,
        f"a training step takes {times}. A plain port takes {port:.1f} ×, PyTorch {torch:.1f} × as long as ours. "
        f"On one H100 ten seeds of 100,000 steps take {gpu:.0f} seconds.",
    )
    others = [1 / _compared(step, "its matrix products alone", f"{machine},")["ratio"] for machine in ("amx", "avx2")]
    yield PAGE, "other machines with {:.1f} and {:.1f} × for a training step".format(*others)


def an_item_of_an_evaluation() -> Iterator[tuple[str, str]]:
    five = _compared("an item under five normalizers", "its matrix products alone")["ours_seconds"]
    long = _compared("an item in sets of 1,048,576 items", "one in sets of 4,096 items")["ours_seconds"]
    yield PAGE, f"an item takes {1e6 * five:.2f} µs under five normalizers at once, and {1e6 * long:.2f} µs in sets"


def blocks() -> Iterator[tuple[str, str]]:
    softmax, adaptive = (
        _compared(f"{name} attention in blocks", "jax.nn.dot_product_attention") for name in ("softmax", "adaptive")
    )
    yield PAGE, f"takes {1000 * softmax['ours_seconds']:.0f} ms, {softmax['ratio']:.1f} × less than"
    yield PAGE, f"adaptive takes {1000 * adaptive['ours_seconds']:.0f} ms, {adaptive['ratio']:.1f} × less"


def where_blocks_begin() -> Iterator[tuple[str, str]]:
    on_cpus, elsewhere = (most.bit_length() - 1 for most in (STREAM_ABOVE, ACCELERATOR_STREAM_ABOVE))
    yield PAGE, f"Attention streams above 2^{on_cpus} logits on CPUs, 2^{elsewhere} elsewhere"


def sparse_maps() -> Iterator[tuple[str, str]]:
    names = [f"{name}, forward and backward, {rows}" for name in ("sparsemax", "entmax15") for rows in (1024, 64)]
    softmax = [1 / _compared(name, "jax.nn.softmax")["ratio"] for name in names]
    yield PAGE, f"take {min(softmax):.1f} to {max(softmax):.1f} × the time of"
    sorting, package = (
        [_compared(name, form.format(name.split(",")[0]))["ratio"] for name in names]
        for form in ("{}, sorted in JAX", "torch entmax: {}, exact")
    )
    yield PAGE, f"{min(sorting):.0f} to {max(sorting):.0f} × less than sorting"
    yield PAGE, f"{min(package):.0f} to {max(package):.0f} × less than the package"


def fused_kernels() -> Iterator[tuple[str, str]]:
    for label, name, digits in (
        ("adaptive temperature, in two calls", "adaptive in two calls", 1),
        ("softmax with a sink", "softmax with a sink", 1),
        ("entmax15 in blocks", "entmax15 in blocks", 0),
    ):
        times = [
            1
            / _compared(f"{name}: attention forward and backward, {n:,} keys", "jax.nn.dot_product_attention", GPU)[
                "ratio"
            ]
            for n in (4096, 16384, 65536)
        ]
        yield PAGE, f"| {label} | " + " | ".join(f"{time:.{digits}f}" for time in times) + " |"
