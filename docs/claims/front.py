"""Claims of what hidden facts cost in loss of text: the page on language models, and its predictions."""

import functools
import json
from collections.abc import Iterator

import polars as pl

from docs.claims import DATA, listed, predicted, read, verdict, with_half
from studies.front import BUDGETS
from studies.front_tables import FROM_TEXT, LEARNED, ONE_BETA, PERMUTED, cells_frame, significance_frame

PAGE = "docs/language_models.md"
SETTINGS = {PAGE: ("a budget of 4 %", "a budget of 1 %")}
Line = tuple[str, str]


@functools.cache
def _cells() -> pl.DataFrame:
    return cells_frame(read("front/answers.csv"), read("front/losses.csv"))


@functools.cache
def _tests() -> pl.DataFrame:
    return significance_frame(read("front/answers.csv"))


def _mean(column: str, kind: str, budget: float, length: int = 512) -> float:
    """Returns the mean of a column over seeds."""
    return _cells().filter(kind=kind, budget=budget, length=length).select(pl.mean(column)).item()


def _most(kind: str) -> float:
    """Returns the largest mean net gain of the budgets."""
    return max(_mean("net", kind, budget) for budget in BUDGETS)


def _longer(kind: str) -> list[float]:
    """Returns the mean net gain within 1 % at both longer lengths."""
    return [_mean("net", kind, 0.01, length) for length in (2048, 4096)]


def _judged(net: float, *holds: bool, more: str = "") -> tuple[str, str]:
    """Returns the verdict of a prediction on a net gain, and what came."""
    return verdict(*holds), f"{net:+.1f}{more}"


def predictions() -> Iterator[Line]:
    quarter, one, four = (_mean("net", LEARNED, budget) for budget in (0.0025, 0.01, 0.04))
    learned, permuted = (_mean("cost", kind, 0.01) for kind in (LEARNED, PERMUTED))
    placebo, beta, text, longer = _most(PERMUTED), _most(ONE_BETA), _most(FROM_TEXT), _mean("net", LEARNED, 0.04, 2048)
    learned_longer, text_longer = min(_longer(LEARNED)), max(_longer(FROM_TEXT))
    placebos_longer = max(*_longer(PERMUTED), *_longer(ONE_BETA))
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
        (
            "At 2,048 and 4,096 tokens five seeds gain at least 6 each within 1 %",
            _judged(learned_longer, learned_longer >= 6),
        ),
        ("There θ permuted and one β gain at most 2 each within 1 %", _judged(placebos_longer, placebos_longer <= 2)),
        ("There θ from text alone loses at least 2 each within 1 %", _judged(text_longer, text_longer <= -2)),
    ]
    yield from predicted((prediction, *judged) for prediction, judged in rows)


def what_was_run() -> Iterator[Line]:
    cells, entry = _cells(), json.loads((DATA / "manifest.json").read_text())["front/answers.csv"]
    assert set(cells["asked"]) == {64}
    learned = cells.filter(kind=LEARNED).group_by("length", "budget").agg(pl.len())
    by_length = {length: learned.filter(length=length)["len"].to_list() for length in cells["length"].unique()}
    seeds = by_length.pop(512)
    assert seeds == [max(seeds)] * len(BUDGETS)
    for counts in by_length.values():
        assert sorted(counts) == [1] * (len(BUDGETS) - 1) + [max(seeds)]
    yield (
        PAGE,
        f"At 512 tokens {max(seeds)} seeds of learning were run; at {listed(f'{n:,}' for n in sorted(by_length))}",
    )
    yield PAGE, f"all five within 1 % and the first at the other budgets ({entry['machine']}, {entry['date']})"


def what_came() -> Iterator[Line]:
    learned, tests = _cells().filter(kind=LEARNED), _tests()
    one = learned.filter(budget=0.01).sort("length").group_by("length", maintain_order=True)
    found = [
        f"{each['found'].mean():.3g} of 64 facts in {length:,} tokens where softmax finds {each['of_softmax'][0]}"
        for (length,), each in one
    ]
    yield PAGE, f"Within 1 % of loss it finds {listed(found)}"
    gains = [
        f"{with_half(each['net'].cast(pl.Float64).to_list(), '+.1f')} facts at {length:,} tokens"
        for (length,), each in one
    ]
    p = tests.filter(budget=0.01)["seeds"].to_numpy().max()
    yield PAGE, f"its gain within 1 % is {listed(gains)} (p of {p:.2g} or less)"
    shown, rest = tests.filter(pl.col("found") < 0.05).sort("budget"), tests.filter(pl.col("found") >= 0.05)
    (length,) = shown["length"].unique()
    budgets = listed(f"{100 * budget:g}" for budget in shown["budget"])
    most, least = shown["found"].to_numpy().max(), rest["found"].to_numpy().min()
    where = f"at {length:,} tokens and budgets of {budgets} % (p of {most:.2g} or less)"
    yield PAGE, f"the counts show {len(shown)} of {len(tests)} gains, {where}; the others have p of {least:.2g} or more"
    answers = tests.filter(pl.col("answer") < 0.05)
    yield PAGE, f"is shown to fall in {len(answers)} of {len(tests)} cells"
    place = {"budget": 0.01, "length": 2048}
    assert len(answers.filter(**place)) == 1
    own = learned.filter(**place)
    yield PAGE, f"at 2,048 tokens and 1 % from {own['answer_of_softmax'][0]:.2f} to {own['answer'].mean():.2f} nats"
    questions = learned.filter(length=512)
    yield PAGE, f"has p < 0.05 in {(questions['p'] < 0.05).sum()} of {len(questions)}"


def placebos() -> Iterator[Line]:
    text, base = _cells().filter(kind=FROM_TEXT), _mean("cost", FROM_TEXT, 0.0)
    lost = (-text["net"]).sort()
    yield PAGE, f"it lowers the loss of text by {-base:.2f} % at a budget of 0"
    yield PAGE, f"and loses {lost[0]} to {lost[-1]} facts at all lengths"
    at_most = max(_most(kind) for kind in (PERMUTED, ONE_BETA))
    answers = min(_mean("answer", kind, budget) for kind in (PERMUTED, ONE_BETA) for budget in BUDGETS)
    bounds = f"at most {at_most:.0f} facts in the mean at 512 tokens, and their answers' loss is {answers:.2f} or more"
    yield PAGE, f"Permuted over the heads, the same θ gains little, and so does one β for all heads: {bounds}"
    permuted, beta = (listed(f"{net:+.0f}" for net in _longer(kind)) for kind in (PERMUTED, ONE_BETA))
    yield PAGE, f"within 1 % at 2,048 and 4,096 tokens θ permuted gains {permuted}, and one β {beta}"
