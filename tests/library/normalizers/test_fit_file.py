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
        kept = {key: value for key, value in content.items() if key not in changes or changes[key] is not None}
        path.write_text(json.dumps(kept))
        return path

    return written


SCALE = sj.EntropyPolynomial((0.5, -1.0, 4.0), entropy_range=(0.5, 3.0))


@pytest.mark.parametrize(
    "form", ["adaptive(fit={})", "adaptive( fit = {} )", "adaptive(fit='{}')", "adaptive(threshold=0.5, fit={})"]
)
def test_a_fit_is_named_on_the_command_line_with_or_without_quotes(write, form):
    assert sj.normalizer(form.format(write())).scale == SCALE


def test_a_fit_is_a_keyword(write):
    assert sj.normalizer("adaptive", fit=write()).scale == SCALE
    assert sj.normalizer("adaptive", fit=str(write()), floor=2.0).scale == sj.EntropyPolynomial(
        (0.5, -1.0, 4.0), floor=2.0, entropy_range=(0.5, 3.0)
    )


def test_beta_at_the_ends_may_be_left_out(write):
    assert read_fit(write(beta_at_ends=None))["seeds"] == [0]


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
        ({"coefficients": "12"}, r"coefficients is '12'; it must be a list of finite numbers"),
        ({"coefficients": [1.0, True]}, r"coefficients is \[1.0, True\]; it must be"),
        ({"coefficients": [float("nan")]}, r"coefficients is \[nan\]; it must be"),
        ({"entropy_range": [3.0, 2.0]}, r"entropy_range is \[3.0, 2.0\]; it must be \[low, high\]"),
        ({"entropy_range": [-1.0, 2.0]}, r"entropy_range is \[-1.0, 2.0\]; it must be"),
        ({"entropy_range": [1.0]}, r"entropy_range is \[1.0\]; it must be"),
    ],
)
def test_a_file_that_is_no_fit_is_refused_in_one_line(write, changes, message):
    path = write(**changes)
    with pytest.raises(ValueError, match=message) as error:
        sj.normalizer(f"adaptive(fit={path})")
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none.json does not exist: name a file that fit_temperature.py wrote"):
        sj.normalizer(f"adaptive(fit={tmp_path}/none.json)")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x.json cannot be read as JSON"):
        sj.normalizer(f"adaptive(fit={tmp_path}/x.json)")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ValueError, match="is no temperature fit: it lacks coefficients, entropy_range"):
        sj.normalizer(f"adaptive(fit={tmp_path}/x.json)")


def test_a_fit_and_what_it_holds_are_not_both_given(write):
    with pytest.raises(ValueError, match="holds coefficients: give either the file or the numbers"):
        sj.normalizer("adaptive(coefficients=(1, 2))", fit=write())


def test_only_the_adaptive_method_takes_a_fit(write):
    with pytest.raises(ValueError, match="normalizer 'ssmax' has no number 'fit'"):
        sj.normalizer(f"ssmax(fit={write()})")
