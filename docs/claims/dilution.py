"""Claims of rank and dilution: the page on language models, and its predictions."""

import functools
import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import DATA, predicted, read, verdict
from studies.dilution_tables import ALL, CHOSEN, correlations, points, predicted_share, totals

Line = tuple[str, str]
FACTS, NEAR, KEYS = "facts", "near copies", "multi_query"
SHARP_MODELS = ("frontier", "near_ties")


@functools.cache
def _cells() -> pl.DataFrame | None:
    """Returns what was measured; None before the run."""
    return read("dilution/cells.csv") if (DATA / "dilution" / "cells.csv").exists() else None


def _value(family: str, length: int, column: str, heads: int = CHOSEN) -> float:
    """Returns a column of the totals of a cell; NaN where it was not measured."""
    if (cells := _cells()) is None:
        return math.nan
    rows = totals(cells, heads).filter(family=family, length=length)
    return float(rows[column].item()) if len(rows) else math.nan


def _judged(*parts: tuple[float, bool], form: str = "{:+.0f}") -> tuple[str, str]:
    """Returns the verdict on some numbers, each with whether it is as predicted, and the numbers."""
    values = [value for value, _ in parts]
    if not np.isfinite(values).all():
        return "not measured", ""
    return verdict(*(holds for _, holds in parts)), form.format(*values)


def _claimed(heads: int) -> tuple[float, float, float]:
    """Returns Spearman's correlation of the share by dilution and the law's gain, with its interval; NaN before."""
    if (cells := _cells()) is None:
        return math.nan, math.nan, math.nan
    frame = points(cells, heads)
    low, high = np.nanquantile(correlations(cells, heads), (0.025, 0.975))
    return float(frame.select(pl.corr("share", "law", method="spearman")).item()), float(low), float(high)


def _lines(*columns: str) -> list[float]:
    """Returns how much a line in each column predicts in other families; NaN before the run."""
    cells = _cells()
    return [math.nan if cells is None else predicted_share(points(cells, ALL), column) for column in columns]


def predictions() -> Iterator[Line]:
    outranked = {
        family: _value(family, 1024, "rank_share") + _value(family, 1024, "both_share") for family in (FACTS, NEAR)
    }
    diluted = [_value(family, 1024, "dilution_share") for family in (FACTS, NEAR)]
    first = 100 * _value(KEYS, 1024, "first")
    fall = _value(KEYS, 16, "weight") / _value(KEYS, 1024, "weight")
    sharp = [_value(family, 4096, "dilution_share") for family in SHARP_MODELS]
    flat = _value("paper_float32", 4096, "dilution_share")
    rank, other, twice, permuted = (
        _value(FACTS, 1024, f"{name}_net") for name in ("rank", "other_rank", "sharp", "permuted")
    )
    laws = [_value(family, 1024, "law_net", ALL) for family in (FACTS, NEAR, KEYS)]
    (everywhere, low, _), (there, *_) = _claimed(ALL), _claimed(CHOSEN)
    by_share, by_wrong = _lines("share", "wrong")
    rows = [
        (
            "SmolLM2 at 1,024 tokens: dilution alone has at most 15 % of the misses, of facts and of near copies",
            _judged(*((share, share <= 15) for share in diluted), form="{:.0f} and {:.0f} %"),
        ),
        (
            "More of them are outranked, with dilution or without, among near copies than of facts apart, and at least "
            "60 % in both",
            _judged(
                (outranked[FACTS], outranked[FACTS] >= 60),
                (outranked[NEAR], outranked[NEAR] >= max(60, outranked[FACTS])),
                form="{:.0f} of facts and {:.0f} % of near copies",
            ),
        ),
        (
            "Keys that a small transformer learned among 16: among 1,024 the right one comes first in at least 50 % of "
            "rows, and its weight has fallen at least 4-fold",
            _judged((first, first >= 50), (fall, fall >= 4), form="{:.0f} %; {:.1f}-fold"),
        ),
        (
            "Max retrieval at 4,096 items: dilution has at least 60 % of the misses of `frontier` and `near_ties`, and "
            "less than 50 % of those of `paper_float32`",
            _judged(*((share, share >= 60) for share in sharp), (flat, flat < 50), form="{:.0f} and {:.0f}, {:.0f} %"),
        ),
        (
            "SmolLM2, facts in 1,024 tokens, five heads: the right rank finds at least 40 % of the misses, net, and "
            "another item's rank none",
            _judged((rank, rank >= 40), (other, other <= 0)),
        ),
        (
            "Doubled logits there find at most 15 %, net, and doubled in heads drawn by lot at most 5",
            _judged((twice, twice <= 15), (permuted, permuted <= 5)),
        ),
        (
            "The law in all heads finds nothing, net, in SmolLM2 at 1,024 tokens, and more than nothing among 1,024 "
            "keys",
            _judged(*((law, law <= 0) for law in laws[:2]), (laws[2], laws[2] > 0), form="{:+.0f}, {:+.0f}; {:+.0f} %"),
        ),
        (
            "Over tasks, models and lengths the share of dilution goes with what the law finds, net: Spearman's ρ of "
            "at least 0.5, its interval above 0",
            _judged((everywhere, everywhere >= 0.5), (low, low > 0), form="{:.2f}, from {:.2f}"),
        ),
        (
            "In families that were left out a line in that share predicts the law's gain better than their mean, and "
            "better than a line in the share of wrong answers does",
            _judged((by_share, by_share > 0), (by_wrong, by_share > by_wrong), form="R² {:.2f} and {:.2f}"),
        ),
        (
            "With the law in five heads alone ρ is larger than in all",
            _judged((there, there > everywhere), form="{:.2f}"),
        ),
    ]
    yield from predicted((prediction, *judged) for prediction, judged in rows)
