"""Test settings: two CPU devices, the compiler as users have it, strict types and ranks, shapes checked at run time."""

import atexit
import importlib.util
import os
import shutil
import tempfile

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

jaxtyping.install_import_hook("softmax_jax", "beartype.beartype")

# The scripts keep compiled programs in the user's cache directory, which is no place for those of the tests.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="softmax_jax-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Compilation makes the first example slow; the same examples on every machine keep the suite reproducible.
for profile, examples in {"default": 10, "full": 200}.items():
    hypothesis.settings.register_profile(profile, deadline=None, derandomize=True, max_examples=examples)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile("default")

HEART = {"softmax", "adaptive", "ssmax", "softpick", "entmax15", "top_k"}
"""Methods that stand for all others in the default tier, where tests run for every method."""
FOLDERS = {"faults", "report", "studies"}
"""Tests of what goes wrong, and of what is drawn: they wait for the full tier."""
EXPERIMENT = {"tasks", "runtime", "temperature", "training", "measures", "report", "studies"}
"""Folders of the package whose examples wait, as most compile a model; those of the library do not."""
LAWS = {"test_every_length", "test_axis_equals_moving_the_axis_to_the_end"}
"""Laws that wait too."""
OF_ALL = {"test_agrees_with_the_formula_in_float64", "test_nothing_behind_the_mask_matters"}
"""The laws that run for all methods even there, in both types."""


def pytest_configure(config: pytest.Config) -> None:
    """Draws more examples of every law with `-m full`."""
    if config.option.markexpr == "full" and not config.option.hypothesis_profile:
        hypothesis.settings.load_profile("full")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks as `full` what is no promise's heart or repeats one. With `-m full`, drawn laws run again."""
    if isinstance(item, pytest.DoctestItem) and item.path.parent.name in EXPERIMENT:
        item.add_marker("full")
    if not isinstance(item, pytest.Function) or item.get_closest_marker("slow"):
        return
    from softmax_jax import METHODS  # once its shapes are checked

    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    second_type = item.path.parent.name == "normalizers" and parameters.get("dtype") in ("bfloat16", "float64")
    repeats = (parameters.get("name") in METHODS.keys() - HEART or second_type) and item.originalname not in OF_ALL
    drawn = hypothesis.is_hypothesis_test(item.obj)
    waits = repeats or item.path.parent.name in FOLDERS or item.originalname in LAWS
    if waits or (drawn and item.config.option.markexpr == "full"):
        item.add_marker("full")


# The comparison with PyTorch is collected where PyTorch is installed, the tests in a browser where Playwright is, and
# those on models of other libraries where these are.
OPTIONAL = {
    "torch": "tests/parity/test_torch.py",
    "clrs": "tests/parity/test_clrs.py",
    "playwright": "tests/browser",
    "equinox": "tests/models",
    "haiku": "tests/models",
}
collect_ignore = [directory for package, directory in OPTIONAL.items() if importlib.util.find_spec(package) is None]


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Frees the programs of a module: each takes memory maps, of which Linux gives a process 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture
def symbols_pass():
    """Switches the check of shapes off, which cannot compare symbols."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
