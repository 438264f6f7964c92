"""Claims of the page on any model."""

from collections.abc import Iterator

from docs.claims import read

PAGE = "docs/any_model.md"


def tour() -> Iterator[tuple[str, str]]:
    frame = read("any_model_tour.csv")
    for label, name in {
        "softmax": "softmax",
        "swapped to SSMax": "ssmax",
        "swapped to SSMax, with one s per head learned on sets of 16": "ssmax, learned s",
    }.items():
        yield PAGE, f"| {label} | {frame.filter(normalizer=name)['1024'].item():.1f} |"


def models_of_other_libraries() -> Iterator[tuple[str, str]]:
    models = read("models.csv")
    assert len(models) == 19
    assert models.select("hardmax", "ssmax", "entmax15").max().row(0) == (0, 0, 0)
    yield PAGE, "[Nineteen models](data/models.csv) keep every bit"
    yield PAGE, f"gradients differ by at most {models['gradient'].max():.0e} of the largest entry".replace("e-0", "e-")
