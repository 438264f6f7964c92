import dataclasses
import json

import pytest

import softmax_jax as sj
from softmax_jax.normalizers.fit_file import KEYS, read_fit, signed

CONTENT = {
    "coefficients": [0.5, -1.0, 4.0],
    "entropy_range": [0.5, 3.0],
    "beta_at_ends": [3.625, 5.5],
    "criterion": "bins",
    "lengths": [2, 4],
    "seeds": [0],
    "versions": {"jax": "0"},
    "checkpoint_sha256": "0",
}
"""Of a fit less its checksum."""


@pytest.fixture
def write(tmp_path):
    def written(**changes):
        path = tmp_path / "a fit-1.json"
        content = signed({key: value for key, value in (CONTENT | changes).items() if value is not None})
        path.write_text(json.dumps({key: value for key, value in content.items() if changes.get(key, 0) is not None}))
        return path

    return written


SCALE = sj.EntropyPolynomial((0.5, -1.0, 4.0), entropy_range=(0.5, 3.0))


def test_a_fit_is_named_on_the_command_line_with_or_without_quotes_or_is_a_keyword(write):
    path = write()
    for form in "adaptive(fit={})", "adaptive( fit = {} )", "adaptive(fit='{}')", "adaptive(threshold=0.5, fit={})":
        assert sj.normalizer(form.format(path)).scale == SCALE
    assert sj.normalizer("adaptive", fit=path).scale == SCALE
    assert sj.normalizer("adaptive", fit=str(path), floor=2.0).scale == dataclasses.replace(SCALE, floor=2.0)
    assert read_fit(write(beta_at_ends=None))["seeds"] == [0]  # which may be left out


@pytest.mark.parametrize(
    ("changes", "message"),
    [({key: None}, f"is no temperature fit: it lacks {key}; run fit_temperature.py anew") for key in KEYS]
    + [
        ({"coefficients": [4.0, -1.0, 0.5]}, r"beta_at_ends says \[3.625, 5.5\]: coefficients go highest power first"),
        (
            {"coefficients": [40.0, -1.0, 0.5], "beta_at_ends": None},
            r"β = 357.5 at H = 3 nats, within its own range, where \|β\| is at most 64: coefficients go highest power",
        ),
        ({"coefficients": []}, r"coefficients is \[\]; it must be a list of finite numbers"),
        ({"coefficients": [1.0, True]}, r"coefficients is \[1.0, True\]; it must be"),
        ({"entropy_range": [3.0, 2.0]}, r"entropy_range is \[3.0, 2.0\]; it must be \[low, high\]"),
        ({"entropy_range": [1.0]}, r"entropy_range is \[1.0\]; it must be"),
    ],
)
def test_a_file_that_is_no_fit_is_refused_in_one_line(write, changes, message):
    path = write(**changes)
    with pytest.raises(ValueError, match=rf"^{path}.*{message}.*$"):
        sj.normalizer(f"adaptive(fit={path})")


def test_a_file_that_is_not_there_or_not_json_is_refused_and_one_for_a_method_without_fits(tmp_path, write):
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    for spec, message in (
        (f"adaptive(fit={tmp_path}/none.json)", "none.json does not exist: name a file that fit_temperature.py wrote"),
        (f"adaptive(fit={tmp_path}/x.json)", "x.json cannot be read as JSON"),
        (f"adaptive(fit={tmp_path}/list.json)", "is no temperature fit: it lacks coefficients, entropy_range"),
        (f"adaptive(coefficients=(1, 2), fit={write()})", "holds coefficients: give either the file or the numbers"),
        (f"ssmax(fit={write()})", "normalizer 'ssmax' has no number 'fit'"),
    ):
        with pytest.raises(ValueError, match=message):
            sj.normalizer(spec)
