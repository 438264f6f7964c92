"""Tables, statistics and the picture of what `studies.dilution` measured."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl
import scipy.stats
from jaxtyping import Float, Int

from softmax_jax.experiment.report import charts, tables

CLASSES = {"rank": (True, False), "dilution": (False, True), "both": (True, True), "neither": (False, False)}
"""Why a question is answered wrong: whether the heads' rows are outranked, and diluted."""
CHOSEN = 5
"""Heads by which misses are split, or all where a model has fewer."""
LEAST = 10
"""Wrong answers that a cell must have in each half of its texts to count."""
LONGEST_TRAINED = {"facts": 0, "near copies": 0, "minimum": 31, "binary_search": 31}
"""The longest sets in training, 16 items for families that are not named; 0 where it is not known."""
LEARNED = 90
"""Percent of the answers at that length that a model must have right to count at any."""
ALL = 2**20
"""More heads than any model has: the law is then in all of them, and in all rows."""
DRAWS = 1000
"""Draws of the bootstrap."""
CELL = ("family", "length")
MODEL = ("family", "seed")
NAMES = {
    "facts": "SmolLM2: facts",
    "near copies": "SmolLM2: near copies",
    "multi_query": "transformer: keys",
    "transformer_max_retrieval": "transformer: largest",
    "sort": "transformer: sort",
    "count": "transformer: count",
    "minimum": "CLRS-Text: minimum",
    "binary_search": "CLRS-Text: binary search",
    "paper": "one head, rounded",
    "paper_float32": "one head, float32",
    "frontier": "one head, frontier",
    "near_ties": "one head, near ties",
}
SHADES = ("#d55e00", "#c32d78", "#874bd2", "#2d96ff", "#007896", "#505050", "#00a0a0", "#a05a2c", "#876900", "#2da51e")
COLOURS = dict(zip(NAMES, (*SHADES, "#ff5a69", "#dc7800")))
"""Of each family."""
LENGTH_ENDS = (32, 16384)
"""The lengths of the smallest point of the picture and of the largest."""
TABLE_LENGTH = 1024
"""The table has the length of each family that is nearest to this one."""


def learned(cells: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of the models that learned their task: `LEARNED` % right at the longest sets in training.

    Models whose training is not known, SmolLM2, all count.
    """
    right = 100 - 100 * pl.col("missed").sum() / pl.col("asked").sum()
    least = pl.when(pl.col("length") == longest_trained()).then(right.over(*MODEL, "length")).max().over(MODEL)
    return cells.filter(least.fill_null(100) >= LEARNED)


def longest_trained() -> pl.Expr:
    """Returns the longest sets in the training of each row's family."""
    return pl.col("family").replace_strict(LONGEST_TRAINED, default=16)


def of_heads(cells: pl.DataFrame, heads: int) -> pl.DataFrame:
    """Returns the rows of so many heads; of all heads, where a family has no more."""
    most = pl.col("heads").max().over("family")
    return cells.filter(pl.col("heads") == pl.min_horizontal(pl.lit(heads), most))


def totals(cells: pl.DataFrame, heads: int) -> pl.DataFrame:
    """Returns counts over models and texts for each family and length, and the net gain of each change.

    The shares of causes and the net gains are in percent of the wrong answers; `first` and `weight` are means.
    """
    rows = of_heads(cells, heads)
    counts = [name for name in rows.columns[rows.columns.index("asked") :] if name not in ("first", "weight")]
    of_cell = pl.sum(*counts), pl.mean("first", "weight"), pl.first("heads")
    sums = rows.group_by(*CELL, maintain_order=True).agg(*of_cell)
    gains = [name.removesuffix("_gained") for name in counts if name.endswith("_gained")]
    nets = {name: 100 * (pl.col(f"{name}_gained") - pl.col(f"{name}_lost")) / pl.col("missed") for name in gains}
    shares = {f"{name}_share": 100 * pl.col(name) / pl.col("missed") for name in CLASSES}
    return sums.with_columns(**{f"{name}_net": net for name, net in nets.items()}, **shares).sort(CELL)


def points(cells: pl.DataFrame, heads: int) -> pl.DataFrame:
    """Returns for each cell the share of misses by dilution, in texts of even number, and what the law gains in others.

    `heads` are those that the law sharpens. `law` and `share` are in percent of the misses; `wrong` is the share of
    questions that are answered wrong in texts of even number. Cells of fewer than `LEAST` misses in a half are left
    out, and those of a length at which the law changes nothing.
    """
    even = pl.col("text") % 2 == 0
    split, gained = totals(cells.filter(even), CHOSEN), totals(cells.filter(~even), heads)
    both = split.join(gained.select(*CELL, "law_net", other="missed"), CELL, suffix="_right")
    wrong = 100 * pl.col("missed") / pl.col("asked")
    kept = both.filter(pl.min_horizontal("missed", "other") >= LEAST, pl.col("length") > longest_trained())
    return kept.select(*CELL, share="dilution_share", law="law_net_right", wrong=wrong)


def predicted_share(frame: pl.DataFrame, column: str) -> float:
    """Returns how much of the law's gain a line in a column predicts in families that it was not fitted to.

    1 less the sum of squared errors over that of the other families' mean: 0 or less where the column says nothing.
    """
    errors, spread = 0.0, 0.0
    for family in frame["family"].unique(maintain_order=True):
        left, others = frame.filter(family=family), frame.filter(pl.col("family") != family)
        line = np.polynomial.Polynomial.fit(others[column], others["law"], 1)
        errors += ((left["law"].to_numpy() - line(left[column].to_numpy())) ** 2).sum()
        spread += ((left["law"].to_numpy() - others["law"].mean()) ** 2).sum()
    return 1 - errors / spread


def drawn_shares(
    random: np.random.Generator, rows: pl.DataFrame, numerator: str, models: Int[np.ndarray, "draws models"]
) -> Float[np.ndarray, " draws"]:
    """Returns a count in percent of the misses of one family and length, in draws of its models and of their texts."""
    sums = np.zeros((len(models), 2))
    for seed, weight in zip(rows["seed"].unique().sort(), models.T):
        counts = rows.filter(seed=seed).select(numerator, "missed").to_numpy()
        texts = draw_equal(random, len(counts), len(models))
        sums += weight[:, None] * (texts @ counts)
    return 100 * np.divide(sums[:, 0], sums[:, 1], out=np.full(len(models), np.nan), where=sums[:, 1] > 0)


def draw_equal(random: np.random.Generator, count: int, draws: int) -> Int[np.ndarray, "draws count"]:
    """Returns how often each of so many is drawn, with replacement."""
    return random.multinomial(count, np.full(count, 1 / max(1, count)), draws)


def with_gain(cells: pl.DataFrame, heads: int) -> pl.DataFrame:
    """Returns the rows of the heads that split misses, with the law's net gain in other heads in the column `gain`."""
    gain = (pl.col("law_gained") - pl.col("law_lost")).alias("gain")
    place = (*CELL, "seed", "text")
    return of_heads(cells, CHOSEN).join(of_heads(cells, heads).select(*place, gain), place)


def correlations(cells: pl.DataFrame, heads: int, draws: int = DRAWS) -> Float[np.ndarray, " draws"]:
    """Returns Spearman's correlation of share and gain in draws of families, of their models, and of texts of each."""
    random, kept, shares, gains, repeats = np.random.default_rng(0), points(cells, heads).select(CELL), [], [], []
    rows, even = with_gain(cells, heads), pl.col("text") % 2 == 0
    families = kept["family"].unique(maintain_order=True).to_list()
    for family, copies in zip(families, draw_equal(random, len(families), draws).T):
        models = draw_equal(random, rows.filter(family=family)["seed"].n_unique(), draws)
        for length in kept.filter(family=family)["length"]:
            cell = rows.filter(family=family, length=length)
            shares.append(drawn_shares(random, cell.filter(even), "dilution", models))
            gains.append(drawn_shares(random, cell.filter(~even), "gain", models))
            repeats.append(copies)
    each = zip(np.array(shares).T, np.array(gains).T, np.array(repeats).T)
    return np.array([spearman(np.repeat(share, copies), np.repeat(gain, copies)) for share, gain, copies in each])


def law_interval(cells: pl.DataFrame, family: str, length: int) -> tuple[float, float]:
    """Returns the 95 % interval of the law's net gain in all heads, of a bootstrap over models and their texts."""
    rows = with_gain(cells, ALL).filter(family=family, length=length)
    random = np.random.default_rng(0)
    drawn = drawn_shares(random, rows, "gain", draw_equal(random, rows["seed"].n_unique(), DRAWS))
    low, high = np.nanquantile(drawn, (0.025, 0.975)).tolist()
    return low, high


def spearman(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Returns the correlation of ranks, without pairs that are not finite; NaN where one is constant."""
    finite = np.isfinite(first) & np.isfinite(second)
    ranks = [scipy.stats.rankdata(np.asarray(values)[finite]) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(each) > 0 for each in ranks if len(each)) else np.nan


def dilution_table(cells: pl.DataFrame) -> str:
    """Returns why questions are answered wrong, and what each change of rows finds, net: one length of each family.

    It is the nearest to `TABLE_LENGTH` of those with at least `LEAST` wrong answers.
    """
    rows, law = [], {row[:2]: row[2] for row in totals(cells, ALL).select(*CELL, "law_net").rows()}
    far = (pl.col("length") / TABLE_LENGTH).log().abs()
    many = totals(cells, CHOSEN).filter(pl.col("missed") >= LEAST)
    nearest = many.filter(far == far.min().over("family"))
    for cell in sorted(nearest.to_dicts(), key=lambda cell: list(NAMES).index(cell["family"])):
        shares = [f"{cell[f'{name}_share']:.0f}" for name in CLASSES]
        nets = [f"{cell[f'{name}_net']:+.0f}" for name in ("rank", "other_rank", "sharp", "permuted")]
        nets[-1:] = nets[-1:] if cell["heads"] == CHOSEN else ["–"]  # by lot, one head of one is the same
        where = [NAMES[cell["family"]], f"{cell['length']:,}", f"{cell['missed']:,} of {cell['asked']:,}"]
        place = cell["family"], cell["length"]
        low, high = law_interval(cells, *place)
        rows.append([*where, *shares, *nets, f"{law[place]:+.0f} ({low:+.0f} to {high:+.0f})"])
    header = ["asked", "length", "wrong", *CLASSES, "right rank", "another's", "doubled", "doubled by lot", "law"]
    return tables.markdown_table(header, rows)


def points_chart(frame: pl.DataFrame, *title: str) -> charts.Chart:
    """Draws what the law finds by the share of misses by dilution: a point for each cell, joined from short to long."""
    named = frame.sort(CELL).with_columns(name=pl.col("family").replace_strict(NAMES))
    colours = {NAMES[family]: COLOURS[family] for family in NAMES if family in set(frame["family"])}
    x = alt.X("share:Q", title="misses by dilution alone (%)", scale=alt.Scale(domain=[0, 100]))
    y = alt.Y("law:Q", title="found by the law, net (% of misses)")
    options = {"orient": "bottom", "direction": "vertical", "columns": 2}
    base = alt.Chart(charts.data(named)).encode(x=x, y=y, color=charts.colour_by("name", colours, **options))
    lines = base.mark_line(strokeWidth=1).encode(order="length:Q", opacity=alt.value(0.6))
    sizes = alt.Scale(type="log", domain=list(LENGTH_ENDS), range=[15, 200])
    legend = alt.Legend(values=[64, 1024, 16384], format=",", orient="right", symbolFillColor="grey")
    points = base.mark_circle().encode(size=alt.Size("length:Q", scale=sizes, legend=legend), opacity=alt.value(0.8))
    zero = alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=charts.GREY).encode(y="y:Q")
    return alt.layer(zero, lines, points).properties(width=300, height=260, title=charts.chart_title(*title))
