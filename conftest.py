"""Test settings: two CPU devices, the compiler as users have it, strict types and ranks, shapes checked at run time."""

import gc
import os
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes to compiling, so programs are kept from run to run, also those of the commands that tests start,
# which would keep theirs in the user's cache directory.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).with_name(".pytest_cache") / "programs"))

import hypothesis
import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

jaxtyping.install_import_hook(["softmax_jax", "studies"], "beartype.beartype")

import studies  # noqa: E402, F401  names tasks and presets of its own

# Compilation makes the first example slow; the same examples on every machine keep the suite reproducible.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=10)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile("default")

EXPERIMENT = {"experiment", "studies", "temperature.py"}
"""Folders and modules whose examples wait for the full tier, as most compile a model; those of the library do not."""
COLLECTED = pytest.StashKey[list[pytest.Item]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks as `full` what no test can say itself: examples in docstrings."""
    if isinstance(item, pytest.DoctestItem) and not EXPERIMENT.isdisjoint(item.path.parts):
        item.add_marker("full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what was collected, of whatever tier."""
    config.stash[COLLECTED] = list(items)


def pytest_collection_finish() -> None:
    """Leaves what is loaded by now out of every garbage collection, which took seconds a minute, and has fewer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Every test of this session, also of the tiers that it does not run."""
    return request.config.stash[COLLECTED]


OPTIONAL = [Path(__file__).with_name("tests") / name for name in ("browser", "gpu", "models", "parity")]
"""Folders of tests that need more than the requirements: a browser, a GPU, models or packages of others."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders of `OPTIONAL` that the command line does not name, as in `pytest tests/models`."""
    named = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    optional = [folder for folder in OPTIONAL if collection_path.is_relative_to(folder)]
    return True if optional and not any(path.is_relative_to(optional[0]) for path in named) else None


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Frees the programs of a module: each takes memory maps, of which Linux gives a process 65,530.

    Files keep them, and small ones too, which a command in the same process may have changed.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield
    jax.clear_caches()


@pytest.fixture
def symbols_pass():
    """Switches the check of shapes off, which cannot compare symbols."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
