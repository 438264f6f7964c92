"""Shells in which tests of this folder type: of the checkout, and of a wheel in an environment of its own."""

import pytest

from tests.end_to_end.shell import Shell, build_wheel, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def python_with_wheel(wheel, tmp_path_factory):
    return install(wheel, tmp_path_factory.mktemp("wheel") / "eine Umgebung für sich")


@pytest.fixture
def shell(request, tmp_path):
    """A shell in an empty directory. Its parameter says of what: "checkout" or "wheel"."""
    place = tmp_path / "mein Täst"
    place.mkdir()
    python = request.getfixturevalue("python_with_wheel") if request.param == "wheel" else None
    with Shell(place, python) as shell:
        yield shell
