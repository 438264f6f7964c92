"""Claims of what hidden facts cost in loss of text: the page on language models, and its predictions."""

import functools
import json
from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import DATA, listed, predicted, read, verdict
from studies.front import BUDGETS
from studies.front_tables import FROM_TEXT, LEARNED, ONE_BETA, PERMUTED, cells_frame

PAGE = "docs/language_models.md"
SETTINGS = {PAGE: ("a budget of 4 %",)}
Line = tuple[str, str]


@functools.cache
def _cells() -> pl.DataFrame:
    return cells_frame(read("front/answers.csv"), read("front/losses.csv"))


def _mean(column: str, kind: str, budget: float, length: int = 512) -> float | None:
    """Returns the mean of a column over seeds; None where nothing was measured."""
    return _cells().filter(kind=kind, budget=budget, length=length)[column].mean()  # pyright: ignore[reportReturnType]


def _most(kind: str) -> float | None:
    """Returns the largest mean net gain of the budgets."""
    nets = [net for budget in BUDGETS if (net := _mean("net", kind, budget)) is not None]
    return max(nets, default=None)


def predictions() -> Iterator[Line]:
    quarter, one, four = (_mean("net", LEARNED, budget) for budget in (0.0025, 0.01, 0.04))
    costs = _mean("cost", LEARNED, 0.01), _mean("cost", PERMUTED, 0.01)
    permuted, beta, text, longer = _most(PERMUTED), _most(ONE_BETA), _most(FROM_TEXT), _mean("net", LEARNED, 0.04, 2048)
    assert quarter is not None and one is not None and four is not None and permuted is not None
    assert costs[0] is not None and costs[1] is not None

    def at_most(bound: float, net: float | None) -> tuple[str, str]:
        return ("not measured", "") if net is None else (verdict(net <= bound), f"{net:+.1f}")

    yield from predicted(
        [
            ("One θ for each head gains at least 8 within 1 % of loss", verdict(one >= 8), f"{one:+.1f}"),
            ("Within 0.25 % it gains at most 4", *at_most(4, quarter)),
            (
                "At 4 % it gains at least 4 more than at 1 %",
                verdict(four - one >= 4),
                f"{four - one:+.1f}",
            ),
            (
                "Permuted over the heads it gains at most 2 at any budget, and at the factors of 1 % it costs twice as "
                "much loss",
                verdict(permuted <= 2, costs[1] >= 2 * costs[0]),
                f"{permuted:+.1f}; {costs[1]:.1f} and {costs[0]:.1f} %",
            ),
            ("One β for all heads gains at most 4 within 4 %", *at_most(4, beta)),
            ("Learned from text alone, θ gains at most 2 at any budget", *at_most(2, text)),
            (
                "At 2,048 tokens θ learned at 512 gains at least 4 within 4 %",
                *(("not measured", "") if longer is None else (verdict(longer >= 4), f"{longer:+.1f}")),
            ),
        ]
    )


def what_was_run() -> Iterator[Line]:
    cells, entry = _cells(), json.loads((DATA / "manifest.json").read_text())["front/answers.csv"]
    seeds = cells.filter(kind=LEARNED, length=512)["seed"].n_unique()
    lengths = sorted(set(cells["length"]))
    assert set(cells["asked"]) == {64}
    yield (
        PAGE,
        f"of {len(cells)} cells, of {seeds} seed{'s' * (seeds > 1)} of learning and {listed(f'{n:,}' for n in lengths)} tokens",
    )
    yield PAGE, f"({entry['machine']}, {entry['date']})"
