"""Claims of what hidden facts cost in loss of text: the page on language models, and its predictions."""

import functools
import json
import math
from collections.abc import Iterator

import polars as pl

from docs.claims import DATA, listed, predicted, read, verdict
from studies.front import BUDGETS
from studies.front_tables import FROM_TEXT, LEARNED, ONE_BETA, PERMUTED, cells_frame

PAGE = "docs/language_models.md"
SETTINGS = {PAGE: ("a budget of 4 %", "a budget of 1 %")}
Line = tuple[str, str]


@functools.cache
def _cells() -> pl.DataFrame:
    return cells_frame(read("front/answers.csv"), read("front/losses.csv"))


def _mean(column: str, kind: str, budget: float, length: int = 512) -> float:
    """Returns the mean of a column over seeds; NaN where nothing was measured."""
    values = _cells().filter(kind=kind, budget=budget, length=length)[column].drop_nulls().to_list()
    return sum(values) / len(values) if values else math.nan


def _most(kind: str) -> float:
    """Returns the largest mean net gain of the budgets."""
    return max((net for budget in BUDGETS if not math.isnan(net := _mean("net", kind, budget))), default=math.nan)


def _judged(net: float, *holds: bool, more: str = "") -> tuple[str, str]:
    """Returns the verdict of a prediction on a net gain, and what came."""
    return ("not measured", "") if math.isnan(net) else (verdict(*holds), f"{net:+.1f}{more}")


def predictions() -> Iterator[Line]:
    quarter, one, four = (_mean("net", LEARNED, budget) for budget in (0.0025, 0.01, 0.04))
    learned, permuted = (_mean("cost", kind, 0.01) for kind in (LEARNED, PERMUTED))
    placebo, beta, text, longer = _most(PERMUTED), _most(ONE_BETA), _most(FROM_TEXT), _mean("net", LEARNED, 0.04, 2048)
    costs = f"; {permuted:.1f} and {learned:.1f} %"
    rows = [
        ("One θ for each head gains at least 8 within 1 % of loss", _judged(one, one >= 8)),
        ("Within 0.25 % it gains at most 4", _judged(quarter, quarter <= 4)),
        ("At 4 % it gains at least 4 more than at 1 %", _judged(four - one, four - one >= 4)),
        (
            "Permuted over the heads it gains at most 2 at any budget, and at the factors of 1 % it costs twice as "
            "much loss",
            _judged(placebo, placebo <= 2, permuted >= 2 * learned, more=costs),
        ),
        ("One β for all heads gains at most 4 within 4 %", _judged(beta, beta <= 4)),
        ("Learned from text alone, θ gains at most 2 at any budget", _judged(text, text <= 2)),
        ("At 2,048 tokens θ learned at 512 gains at least 4 within 4 %", _judged(longer, longer >= 4)),
    ]
    yield from predicted((prediction, *judged) for prediction, judged in rows)


def what_was_run() -> Iterator[Line]:
    cells, entry = _cells(), json.loads((DATA / "manifest.json").read_text())["front/answers.csv"]
    seeds = cells.filter(kind=LEARNED, length=512)["seed"].n_unique()
    lengths = listed(f"{length:,}" for length in sorted(set(cells["length"])))
    assert set(cells["asked"]) == {64}
    yield (
        PAGE,
        f"{len(cells)} cells are there, with {seeds} seed{'s' * (seeds > 1)} of learning, at {lengths} tokens",
    )
    yield PAGE, f"({entry['machine']}, {entry['date']})"


def what_came() -> Iterator[Line]:
    cells = _cells().filter(length=512)
    learned, placebos = (cells.filter(pl.col("kind").is_in(kinds)) for kinds in ([LEARNED], [PERMUTED, ONE_BETA]))
    one, softmax = learned.filter(budget=0.01), cells.row(0, named=True)
    found = f"{one['found'].mean():.3g} of 64 facts where softmax finds {softmax['of_softmax']}"
    yield PAGE, f"Within 1 % of loss it finds {found}"
    least, most = learned["holm"].min(), learned["holm_answer"].max()
    assert isinstance(least, float)
    assert isinstance(most, float)
    assert most < 0.05 < least
    yield PAGE, f"the counts show no gain at any budget (p of {least:.2g} or more)"
    answers = f"from {softmax['answer_of_softmax']:.2f} to {one['answer'].mean():.2f} nats"
    yield PAGE, f"the mean loss of the answers falls at each, at 1 % {answers} (p of {most:.2g} or less"
    bounds = f"at most {placebos['net'].max()} facts, and their answers' loss is {placebos['answer'].min():.2f} or more"
    yield PAGE, f"Permuted over the heads, the same θ gains nothing, nor does one β for all heads: {bounds}"
    nets = {budget: _mean("net", LEARNED, budget) for budget in BUDGETS}
    assert nets[0.04] - nets[0.01] < 2
    yield PAGE, f"Budgets above 1 % bring {nets[0.04] - nets[0.01]:+.2g} fact at most"
    assert max(nets.values()) == nets[0.04]
