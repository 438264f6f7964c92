"""Test settings: at least two CPU devices, strict types and ranks, shapes checked at run time."""

import atexit
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"  # optimizing small programs costs more than it saves
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Programs of the older emitters compile twice as fast; later releases have the newer alone.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

install_import_hook("softmax_jax", "beartype.beartype")

# The scripts keep compiled programs in the user's cache directory, which is no place for those of the tests.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="softmax_jax-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Compilation makes the first example slow; the same examples on every machine keep the suite reproducible.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=200)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile("default")

# The comparison with PyTorch is collected where PyTorch is installed, the tests in a browser where Playwright is.
OPTIONAL = {"torch": "tests/parity", "playwright": "tests/browser"}
collect_ignore = [directory for package, directory in OPTIONAL.items() if importlib.util.find_spec(package) is None]


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Frees the programs of a module: each takes memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()
