"""Claims of rank and dilution: the page on how sharp a row must be, and its predictions."""

import functools
from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import PREDICTIONS, predicted, read, verdict
from studies.dilution_tables import (
    ALL,
    CHOSEN,
    LEARNED,
    correlations,
    learned,
    points,
    predicted_share,
    spearman,
    totals,
)

PAGE = "docs/sharpness.md"
SETTINGS = {
    PAGE: (
        "its share falls from 91 to 1 %",
        "the 95 % interval of a bootstrap",
        f"A model counts if it has {LEARNED} % right at the longest sets in its training",
    ),
    PREDICTIONS: (f"a model counts if it has {LEARNED} % right at the longest sets in its training",),
}
TASKS = dict.fromkeys(("paper", "paper_float32", "frontier", "near_ties"), "one head")
TASKS |= {"facts": "SmolLM2", "near copies": "SmolLM2", "minimum": "CLRS-Text", "binary_search": "CLRS-Text"}
TASKS |= {"multi_query": "transformer", "transformer_max_retrieval": "transformer"}
"""What families are one task or model of."""
Line = tuple[str, str]
FACTS, NEAR, KEYS = "facts", "near copies", "multi_query"
SHARP_MODELS = ("frontier", "near_ties")


@functools.cache
def _all_cells() -> pl.DataFrame:
    """Returns what was measured."""
    return read("dilution/cells.csv")


@functools.cache
def _cells() -> pl.DataFrame:
    """Returns what was measured of the models that learned their task."""
    return learned(_all_cells())


def _value(family: str, length: int, column: str, heads: int = CHOSEN) -> float:
    """Returns a column of the totals of a cell."""
    return float(totals(_cells(), heads).filter(family=family, length=length)[column].item())


def _judged(*parts: tuple[float, bool], form: str = "{:+.0f}") -> tuple[str, str]:
    """Returns the verdict on some numbers, each with whether it is as predicted, and the numbers."""
    return verdict(*(holds for _, holds in parts)), form.format(*(value for value, _ in parts))


def _correlated(frame: pl.DataFrame, heads: int) -> tuple[float, float, float]:
    """Returns Spearman's correlation of the share by dilution and the law's gain, with its 95 % interval."""
    low, high = np.nanquantile(correlations(_cells(), heads), (0.025, 0.975))
    return spearman(frame["share"].to_numpy(), frame["law"].to_numpy()), float(low), float(high)


def predictions() -> Iterator[Line]:
    outranked = {
        family: _value(family, 1024, "rank_share") + _value(family, 1024, "both_share") for family in (FACTS, NEAR)
    }
    diluted = [_value(family, 1024, "dilution_share") for family in (FACTS, NEAR)]
    first = 100 * _value(KEYS, 1024, "first")
    fall = _value(KEYS, 16, "weight") / _value(KEYS, 1024, "weight")
    sharp = [_value(family, 4096, "dilution_share") for family in SHARP_MODELS]
    flat = _value("paper_float32", 4096, "dilution_share")
    missed = [_value(family, 4096, "missed") for family in (*SHARP_MODELS, "paper_float32")]
    of_misses = "{{:.0f}} % of {:.0f} and {{:.0f}} % of {:.0f}; {{:.0f}} % of {:.0f}".format(*missed)
    rank, other, twice, permuted = (
        _value(FACTS, 1024, f"{name}_net") for name in ("rank", "other_rank", "sharp", "permuted")
    )
    laws = [_value(family, 1024, "law_net", ALL) for family in (FACTS, NEAR, KEYS)]
    frame = points(_cells(), ALL)
    (everywhere, low, _), (there, *_) = (_correlated(points(_cells(), heads), heads) for heads in (ALL, CHOSEN))
    by_share, by_wrong = (predicted_share(frame, column) for column in ("share", "wrong"))
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
            _judged(
                *((share, share >= 60) for share in sharp),
                (flat, flat < 50),
                form=of_misses,
            ),
        ),
        (
            "SmolLM2, facts in 1,024 tokens, five heads: the right rank finds at least 40 % of the misses, net, and "
            "another item's rank none",
            _judged((rank, rank >= 40), (other, other <= 0), form="{:+.0f} and {:+.0f}"),
        ),
        (
            "Doubled logits there find at most 15 %, net, and doubled in heads drawn by lot at most 5",
            _judged((twice, twice <= 15), (permuted, permuted <= 5), form="{:+.0f} and {:+.0f}"),
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
        *_of_counting_and_clrs_text(),
    ]
    yield from predicted((prediction, *judged) for prediction, judged in rows)


def _of_counting_and_clrs_text() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the predictions on the families that were added, with their verdicts."""
    models = learned(_all_cells()).filter(family="count")["seed"].n_unique()
    assert models == 0, "judge what counting models do at 256 items"
    yield (
        "Counting is learned, 90 % right of 16 items, by all three models; among 256 dilution has at least 60 % of the "
        "misses, and the law in all heads finds at most 5 %, net, as a count is a share of the weight",
        ("fails", "no model learned it, and so none counts"),
    )
    neither, law = _value("minimum", 64, "neither_share"), _value("minimum", 64, "law_net", ALL)
    yield (
        "CLRS-Text, minimum of 64: neither has at least 40 % of the misses, and the law finds at most 10 %, net",
        _judged((neither, neither >= 40), (law, law <= 10), form="{:.0f} %; {:+.0f} %"),
    )
    outranked = _value("binary_search", 64, "rank_share") + _value("binary_search", 64, "both_share")
    law = _value("binary_search", 64, "law_net", ALL)
    yield (
        "Binary search among 64: at least 60 % of the misses are outranked, and the law finds at most 5 %, net",
        _judged((outranked, outranked >= 60), (law, law <= 5), form="{:.0f} %; {:+.1f} %"),
    )


def _cell(family: str, length: int) -> dict[str, float]:
    """Returns the totals of a cell, with the law's net gain in all heads as `law`."""
    (row,) = totals(_cells(), CHOSEN).filter(family=family, length=length).to_dicts()
    return row | {"law": _value(family, length, "law_net", ALL), "outranked": row["rank_share"] + row["both_share"]}


def split_and_law() -> Iterator[Line]:
    frame = points(_cells(), ALL)
    correlation, low, high = _correlated(frame, ALL)
    by_share, by_wrong = (100 * predicted_share(frame, column) for column in ("share", "wrong"))
    count, families = len(frame), frame["family"].n_unique()
    yield PAGE, f"ρ is {correlation:.2f} ({low:.2f} to {high:.2f}) in {count} cells of {families} families"
    yield PAGE, "its interval includes 0" if low <= 0 else "its interval is above 0"
    yield (
        PAGE,
        f"A line in the share explains {by_share:.0f} % of the gain's variance in families left out, one in the share "
        f"of wrong answers {max(0, by_wrong):.0f} %",
    )
    of_task = frame.with_columns(pl.col("family").replace(TASKS))
    yield (
        PAGE,
        f"with all families of a task or model left out it explains {100 * predicted_share(of_task, 'share'):.0f} %",
    )


def causes() -> Iterator[Line]:
    facts, near, keys = (_cell(family, 1024) for family in (FACTS, NEAR, KEYS))
    yield (
        PAGE,
        f"{facts['outranked']:.0f} % of {facts['missed']} misses about facts and {near['outranked']:.0f} % of "
        f"{near['missed']} about near copies are outranked",
    )
    yield PAGE, f"The right rank finds {facts['rank_net']:.0f} and {near['rank_net']:.0f} % of them"
    yield PAGE, f"the law {facts['law']:+.0f} and {near['law']:+.0f} %"
    short = _cell(KEYS, 16)
    yield (
        PAGE,
        f"among 1,024 the right one still comes first in {100 * keys['first']:.0f} % of the rows, while its weight has "
        f"fallen from {100 * short['weight']:.0f} to {100 * keys['weight']:.0f} %",
    )
    yield PAGE, f"the law finds {keys['law']:.0f} % of the misses"
    flat, rounded = (_cell(family, 1024) for family in ("paper_float32", "paper"))
    assert abs(flat["missed"] - rounded["missed"]) < 0.05 * flat["missed"]
    assert rounded["outranked"] > 50 > flat["outranked"]
    assert round(flat["law"] / rounded["law"]) == 3
    yield PAGE, "the law finds three times as much"


def left_out() -> Iterator[Line]:
    every, kept = (frame.group_by("family").agg(pl.col("seed").n_unique()) for frame in (_all_cells(), _cells()))
    models, counted = (dict(frame.iter_rows()) for frame in (every, kept))
    out = {family: count - counted.get(family, 0) for family, count in models.items()}
    assert {family for family, count in out.items() if count} == {"sort", "count"}
    for family in ("sort", "count"):
        yield PAGE, f"{out[family]} of {models[family]} that {family}"
