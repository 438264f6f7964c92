"""Claims of the page on how far a recipe reaches."""

from collections.abc import Iterator

import numpy as np

from docs.claims import holm, read, with_half
from softmax_jax.experiment.report.accuracy import ACCURACY

PAGE = "docs/recipes.md"
SETTINGS = {PAGE: ("half the 95 % interval", "up to 0.003")}
LENGTHS = (1024, 16384, 65536)
MODELS = ("paper_float32", "frontier", "near_ties")


def _seeds(model: str, normalizer: str, n: int) -> list[float]:
    return read(f"reach/{model}.csv", normalizer=normalizer, n=n).sort("seed")["accuracy"].to_list()


def reach() -> Iterator[tuple[str, str]]:
    for normalizer in ("softmax", "adaptive"):
        cells = " | ".join(f"{ACCURACY[normalizer][n]}" for n in LENGTHS[:-1])
        yield PAGE, f"| {normalizer} | {cells} | |"
    for model in MODELS:
        for normalizer in ("softmax", "adaptive"):
            cells = " | ".join(with_half(_seeds(model, normalizer, n)) for n in LENGTHS)
            yield PAGE, f"| {normalizer} | {cells} |"
    mean, published = np.mean(_seeds("frontier", "softmax", 16384)), ACCURACY["softmax"][16384]
    yield PAGE, f"answers {mean:.1f} % of the sets of 16,384 items, where the published model answers {published} %"


def gains_of_the_adaptive_temperature() -> Iterator[tuple[str, str]]:
    """Tests `frontier` at the lengths that softmax does not answer nearly all of."""
    lengths = (4096, 16384, 65536)
    pairs = [(_seeds("frontier", "adaptive", n), _seeds("frontier", "softmax", n)) for n in lengths]
    _, middle, longest = (with_half(np.subtract(adaptive, softmax)) for adaptive, softmax in pairs)
    yield PAGE, f"gains {middle} points at 16,384 items and {longest} at 65,536"
    yield PAGE, f"p < {_power_above(max(holm(pairs)))}"


def _power_above(p_value: float) -> str:
    return f"1e{int(np.ceil(np.log10(p_value)))}"


def losses_of_the_ablation() -> Iterator[tuple[str, str]]:
    long = read("frontier/losses.csv", n=16384, group="base").mean()
    both, lost = long["both"].item(), 100 - long["accuracy"].item()
    yield PAGE, f"{both:.0f} of the base's {lost:.0f} points"
    frame = read("frontier/losses.csv")
    yield PAGE, f"{frame['recipe'].n_unique()} recipes"


def keys() -> Iterator[tuple[str, str]]:
    cells = read("frontier/competition.csv")
    yield PAGE, f"The mean miss of {len(cells)} predictions is {cells['miss'].abs().mean():.2f} points"
    yield PAGE, f"the largest {cells['miss'].abs().max():.1f}"
    inside = (cells["miss"].abs() <= cells["interval"]).sum()
    yield PAGE, f"{inside} lie within the 95 % interval over seeds"
