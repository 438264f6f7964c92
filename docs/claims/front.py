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
    cells = _cells()
    learned = cells.filter(kind=LEARNED)
    found = [
        f"{one['found'].mean():.3g} of 64 facts in {length:,} tokens where softmax finds {one['of_softmax'][0]}"
        for (length,), one in learned.filter(budget=0.01).sort("length").group_by("length", maintain_order=True)
    ]
    yield PAGE, f"Within 1 % of loss it finds {listed(found)}"
    least = learned.select(pl.min("holm")).item()
    assert least > 0.05
    yield PAGE, f"the counts show no gain after Holm over {len(learned)} cells (p of {least:.2g} or more)"
    shown = learned.filter(pl.col("holm_answer") < 0.05).sort("length", "budget")
    assert set(shown["length"]) == {512}
    budgets = listed(f"{100 * budget:g}" for budget in shown["budget"])
    most = shown.select(pl.max("holm_answer")).item()
    yield PAGE, f"it falls at 512 tokens and budgets of {budgets} % (p of {most:.2g} or less"
    one = learned.filter(budget=0.01, length=512)
    answers = f"from {one['answer_of_softmax'][0]:.2f} to {one['answer'].mean():.2f} nats"
    yield PAGE, f"at 1 % {answers}"


def placebos() -> Iterator[Line]:
    nets = {budget: _mean("net", LEARNED, budget) for budget in BUDGETS}
    assert max(nets.values()) == nets[0.04]
    yield PAGE, f"at 512 tokens budgets above 1 % bring {nets[0.04] - nets[0.01]:+.2g} fact at most"
    others = _cells().filter(pl.col("kind").is_in([PERMUTED, ONE_BETA]), length=512)
    bounds = f"at most {others['net'].max()} facts, and their answers' loss is {others['answer'].min():.2f} or more"
    yield PAGE, f"Permuted over the heads, the same θ gains nothing, nor does one β for all heads: {bounds}"
