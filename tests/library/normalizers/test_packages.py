"""Normalizers of installed packages: known by the names in their metadata, imported when they are asked for."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.commands.output import trust_option
from softmax_jax.experiment.training.config import Config, read_config
from softmax_jax.files import write_json
from softmax_jax.normalizers import packages, registry, user_modules

TINY = """
import jax
import softmax_jax as sj

class Relu(sj.Map):
    sums_to_one = False
    power: float = sj.number(default=1.0)

    def weights(self, row):
        return jax.nn.relu(row.logits) ** self.power + row.zero()

relu = Relu()
number = 3
"""
ENTRIES = {
    "tiny_relu": "tiny_normalizers:relu",
    "softmax": "tiny_normalizers:relu",
    "tiny_number": "tiny_normalizers:number",
    "tiny_absent": "tiny_normalizers:absent",
    "tiny_broken": "tiny_broken:relu",
}


def install(folder, package: str, entries: dict[str, str]) -> None:
    """Writes the metadata of a package into a folder of `sys.path`."""
    metadata = folder / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{packages.GROUP}]", *lines, ""]))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with good and bad names, which is forgotten afterwards."""
    (tmp_path / "tiny_normalizers.py").write_text(TINY)
    (tmp_path / "tiny_broken.py").write_text("import a_module_that_nobody_has\n")
    install(tmp_path, "tiny", ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "_loaded", set())
    monkeypatch.setattr(user_modules, "_trusted", set())
    before = dict(sj.METHODS)
    yield tmp_path
    for name in sj.METHODS.keys() - before.keys():
        del registry._methods[name]
    for module in "tiny_normalizers", "tiny_broken":
        sys.modules.pop(module, None)


def test_a_package_is_imported_when_one_of_its_names_is_asked_for_and_not_before(installed):
    sj.normalizer("ssmax(s=0.5)")
    with pytest.raises(ValueError, match="did you mean 'tiny_relu'"):
        sj.normalizer("tiny_rel")
    assert "tiny_normalizers" not in sys.modules
    logits = jnp.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(sj.normalizer("tiny_relu")(logits), [1, 0, 3])
    np.testing.assert_allclose(sj.normalizer("tiny_relu(power=2.0)")(logits), [1, 0, 9])
    assert sj.METHODS["tiny_relu"].name == "tiny_relu"
    np.testing.assert_allclose(sj.normalizer("softmax")(logits), sj.softmax(logits))  # no package takes a name of ours


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tiny_broken", r"named by the package tiny 1\.2, whose tiny_broken:relu cannot be imported \(Module"),
        (
            "tiny_absent",
            r"named by the package tiny 1\.2, whose tiny_normalizers:absent cannot be imported \(",
        ),
        ("tiny_number", r"the package tiny 1\.2 holds no normalizer: tiny_number is 3; it must be a map"),
    ],
)
def test_a_broken_package_answers_in_one_line_that_names_it(installed, name, says):
    with pytest.raises((ValueError, TypeError), match=says) as refusal:
        sj.normalizer(name)
    assert "\n" not in str(refusal.value)


def test_the_list_of_all_names_has_those_of_packages(installed):
    (installed / "tiny-1.2.dist-info" / "entry_points.txt").write_text(
        f"[{packages.GROUP}]\ntiny_relu = tiny_normalizers:relu\n"
    )
    assert "tiny_relu" in registry.all_names()


def test_a_name_that_two_packages_claim_is_refused(installed):
    install(installed, "twin", {"tiny_relu": "twin:relu"})
    sys.path_importer_cache.clear()
    with pytest.raises(ValueError, match=r"claimed by tiny 1\.2, twin 1\.2: uninstall all but one"):
        sj.normalizer("tiny_relu")


def test_a_file_may_not_name_a_normalizer_of_a_package_that_nobody_typed(installed, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_json(run / "config.json", {"normalizer": "tiny_relu"})
    with pytest.raises(ValueError, match=r"names 'tiny_relu', and importing tiny_normalizers would run its code"):
        read_config(run)
    assert "tiny_normalizers" not in sys.modules
    sj.normalizer("tiny_relu")  # typed in code
    config = read_config(run)
    assert config.normalizer == "tiny_relu"
    assert [trust_option(each) for each in (config, Config())] == [" --trust-code", ""]
    write_json(run / "config.json", {"normalizer": "tiny_relu(power=2.0)"})
    with pytest.raises(ValueError, match="would run its code"):
        read_config(run)
