"""The temperature fit as tables for a terminal and as a chart."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax import temperature as fitting
from softmax_jax.experiment.measures.dispersion import HARDMAX
from softmax_jax.experiment.measures.refit import (
    BEST_FOR_LENGTH,
    BEST_FOR_SET,
    BEST_OF_ALL,
    BEST_OF_TRAINING,
    MOST_SETS,
)
from softmax_jax.experiment.measures.runs import FITS
from softmax_jax.experiment.measures.significance import half_width
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import GREY, palette
from softmax_jax.experiment.report.print_layout import Paper
from softmax_jax.experiment.report.tables import groups_of, new_table, number_or_dash, print_groups
from softmax_jax.files import write_csv
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.temperature import THETA_RANGE, Curve, Rows, TemperatureFit

PUBLISHED = "adaptive"
ENTROPIES = (0.6, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5)
"""Entropies in nats at which fits are compared with the published polynomial."""
ENDS = ("low", "high")
PUBLISHED_RANGE = (0.849, 5.945)
"""Entropies in nats between which the published polynomial exceeds 1."""
LEAST_GAIN = 1.0
"""Points that the best constant temperature must gain for a share of its gain to mean something."""
BETA_RANGE = (1 / THETA_RANGE[1], 1 / THETA_RANGE[0])


def print_fits(console: Console, fits: Mapping[str, TemperatureFit]) -> None:
    """Prints coefficients with intervals, the range, R², and by length the rows covered and those on the border."""
    for name, fit in fits.items():
        low, high = fit.entropy_range
        lengths = f"{len(fit.lengths)} lengths, {min(fit.lengths)} … {max(fit.lengths)} items"
        table = new_table(f"{name}, by {fit.criterion}, from {lengths}", "power of H", "β", "95 %")
        for index, coefficient in enumerate(fit.coefficients):
            interval = "–" if fit.intervals is None else "{:.4g} … {:.4g}".format(*fit.intervals[index])
            table.add_row(str(len(fit.coefficients) - 1 - index), f"{coefficient:.6g}", interval)
        console.print(table)
        console.print(
            f"for {low:.3f} ≤ H ≤ {high:.3f} nats (H is clamped to that), {kind(fit)}; R² on held-out sets "
            f"{number_or_dash(fit.r_squared, '.2f')}\n",
            soft_wrap=True,
            highlight=False,
        )
    longest = max(fits.values(), key=lambda fit: len(fit.lengths))
    shares = {f"covered by {name}": fit.coverage for name, fit in fits.items()}
    shares["best θ on the border"] = longest.border
    shares[f"with a say by {longest.criterion}"] = longest.used
    groups = {
        name: {"": {int(n): f"{share:.1f}" for n, share in by_length.items()}} for name, by_length in shares.items()
    }
    print_groups(console, "Rows, in %", groups, longest.lengths)
    console.print(
        "covered: H lies in the fitted range, or is so low that β = 1 by rule; border: the loss is least at an end of "
        f"{THETA_RANGE[0]:.3g} ≤ θ ≤ {THETA_RANGE[1]:g}\n",
        style="dim",
    )


def is_softmax(fit: TemperatureFit) -> bool:
    """Says whether a fit changes nothing: β is 1 over its range, under the rule β ≥ 1 of the method."""
    low, high = fit.entropy_range
    return bool((fitting.ruled(fit.curve)(np.linspace(low, high, 101)) == 1).all())


def kind(fit: TemperatureFit) -> str:
    """Says how β goes over the range of a fit, under the rule β ≥ 1 of the method."""
    if is_softmax(fit):
        return f"β at most 1 (from {fit.beta_at_ends[0]:.3g} to {fit.beta_at_ends[1]:.3g}), so 1 by rule: softmax"
    if len(fit.coefficients) == 1:
        return f"a constant: β = {fit.coefficients[0]:.3g}"
    return f"β from {fit.beta_at_ends[0]:.3g} to {fit.beta_at_ends[1]:.3g}"


def published(entropy: np.ndarray) -> np.ndarray:
    """Returns β by the published polynomial alone, without the rules of the method."""
    return np.polyval(np.array(EntropyPolynomial.coefficients), entropy)


PUBLISHED_AT = dict(zip(ENTROPIES, published(np.array(ENTROPIES)).tolist()))


def curve_frame(fits: Mapping[str, TemperatureFit]) -> pl.DataFrame:
    """Returns β of each fit at those of `ENTROPIES` within its range, with the ends of its band, null for one seed."""
    rows = []
    for name, fit in fits.items():
        lowest, highest = fit.entropy_range
        inside = np.array([entropy for entropy in ENTROPIES if lowest <= entropy <= highest])
        none = [None] * len(inside)
        low, high = (
            np.interp(inside, fit.band["entropy"], fit.band[end]).tolist() if fit.band else none for end in ENDS
        )
        rows += zip([name] * len(inside), inside.tolist(), fit.curve(inside).tolist(), low, high)
    types = dict.fromkeys(("entropy", "beta", *ENDS), pl.Float64)
    return pl.DataFrame(rows, {"model": pl.String, **types}, orient="row")


def holds(entropy: float, low: float, high: float) -> bool:
    """Says whether a band holds the published curve at one of `ENTROPIES`."""
    return low <= PUBLISHED_AT[entropy] <= high


def print_published(console: Console, fits: Mapping[str, TemperatureFit]) -> None:
    """Prints the published polynomial beside the fits, entropy by entropy, and whether their bands hold it."""
    table = new_table("β by entropy", "H (nats)", *map("{:g}".format, ENTROPIES))
    lines = {"published": {entropy: f"{beta:.2f}" for entropy, beta in PUBLISHED_AT.items()}}
    frame = curve_frame(fits)
    for name in fits:
        rows = frame.filter(model=name)
        lines[name] = {entropy: f"{beta:.2f}" for _, entropy, beta, *_ in rows.rows()}
        if fits[name].band:
            bands = rows.select("entropy", *ENDS).rows()
            lines["  95 %, from"] = {entropy: f"{low:.2f}" for entropy, low, _ in bands}
            lines["  to"] = {entropy: f"{high:.2f}" for entropy, _, high in bands}
            lines["  holds the published"] = {band[0]: "yes" if holds(*band) else "no" for band in bands}
        for line, cells in lines.items():
            table.add_row(line, *(cells.get(entropy, "–") for entropy in ENTROPIES))
        lines = {}
    console.print(table)


def print_comparison(console: Console, compared: pl.DataFrame) -> None:
    """Prints accuracy, loss, the share of the possible gain and p against the published polynomial of every method.

    The frame has the columns normalizer, n, seed, accuracy and loss.
    """
    columns = [("accuracy", "accuracy", ".2f"), ("±", "interval", ".2f"), ("loss", "loss", ".3f")]
    columns += [("share", "share", ".0f"), ("p", "p_value", ".1g")]
    summary = summarize(compared, PUBLISHED).with_columns(certain=pl.col("n").is_in(certain_lengths(compared)))
    summary = summary.with_columns(share=pl.when("certain").then(share_of_gain()))
    print_groups(console, "Fresh sets", groups_of(summary, columns), sorted(set(compared["n"])))
    console.print(
        "accuracy: % of sets, ± half the 95 % interval (t); loss: nats; share: in % of the accuracy that "
        f"{BEST_FOR_LENGTH} gains over {BASELINE}, where that gain exceeds its own 95 % interval; p: paired t-test "
        f"against the published polynomial, corrected by Holm for its lengths; {BEST_FOR_LENGTH}, {BEST_OF_ALL} and "
        f"{BEST_OF_TRAINING}: constants, chosen for accuracy and for loss; {BEST_FOR_SET}: needs the answer. What is "
        "fitted or chosen is so on other sets and, of several seeds, on the other half. Only a fit that is called "
        "train saw no length beyond training, so it alone shows how far a fit generalises.",
        style="dim",
    )


def share_of_gain() -> pl.Expr:
    """Returns the share in % of what the best constant temperature gains over softmax at a length, if that is much."""
    start, end = (
        pl.col("accuracy").filter(pl.col("normalizer") == name).first().over("n")
        for name in (BASELINE, BEST_FOR_LENGTH)
    )
    is_end = pl.col("normalizer").is_in([BASELINE, BEST_FOR_LENGTH])
    return pl.when(~is_end & (end - start >= LEAST_GAIN)).then(100 * (pl.col("accuracy") - start) / (end - start))


def certain_lengths(compared: pl.DataFrame) -> list[int]:
    """Returns the lengths where the 95 % interval of the best constant's gain over softmax lies above 0."""
    gains = summarize(compared.filter(pl.col("normalizer").is_in([BASELINE, BEST_FOR_LENGTH])))
    return gains.filter(pl.col("gain") > pl.col("gain_interval"))["n"].to_list()


def print_accuracies(console: Console, compared: pl.DataFrame) -> None:
    """Prints accuracy by length under softmax, the published polynomial, the fits, and the constants to beat."""
    shown = compared.filter(~pl.col("normalizer").is_in([HARDMAX, BEST_FOR_LENGTH, BEST_FOR_SET]))
    groups = groups_of(summarize(shown), [("", "accuracy", ".1f")])
    print_groups(console, "Accuracy on fresh sets, in %", groups, sorted(set(compared["n"])))


def answers(
    fits: Mapping[str, TemperatureFit], rows: Mapping[int, Rows], compared: pl.DataFrame, degree: int, sets: int
) -> list[str]:
    """Says what was fitted, what it gains on fresh sets, where it holds, and how it lies to the published polynomial.

    Of a fit that changes nothing there is neither the third nor the fourth.

    Arguments:
        fits: By name; the first is what the sentences are about.
        rows: By length, those that were fitted to.
        compared: The frame that `print_comparison` takes.
        degree: The degree that was asked for.
        sets: The sets per seed and length of the fit.
    """
    name, fit = next(iter(fits.items()))
    low, high = fit.entropy_range
    longest = str(max(fit.lengths))
    first = [what_was_fitted(fit, rows, degree, sets), *gains_of(name, fit, compared)]
    if is_softmax(fit):
        return first
    return [
        *first,
        f"It holds from {low:.2f} to {high:.2f} nats, which covers {fit.coverage[longest]:.0f} % of the rows of "
        f"{longest} items; beyond, β stays as at the nearer end.",
        beside_published(fit),
    ]


def what_was_fitted(fit: TemperatureFit, rows: Mapping[int, Rows], degree: int, sets: int) -> str:
    """Says whether a curve, a constant or softmax was fitted, and why not the degree that was asked for."""
    low, high = fit.entropy_range
    fitted = len(fit.coefficients) - 1
    count = sum(fit.used[str(n)] * length_rows.entropy.size / 100 for n, length_rows in rows.items())
    range_of_rows = f"between {low:.2f} and {high:.2f} nats"
    more = f"More sets: --sets {4 * sets}." if 4 * sets <= MOST_SETS else ""
    if is_softmax(fit):
        return f"The fit changes nothing: the best β {range_of_rows} is at most 1, which is softmax by rule."
    if fitted == 0 < degree:
        return (
            f"Your models have {count:,.0f} rows {range_of_rows}: too few for a curve, so one temperature was fitted: "
            f"β = {fit.coefficients[0]:.3g}. {more}"
        )
    fewer = f" There are too few rows for degree {degree}. {more}" if fitted < degree else ""
    return f"Fitted to {count:,.0f} rows {range_of_rows}: a polynomial of degree {fitted}, {kind(fit)}.{fewer}"


def gains_of(name: str, fit: TemperatureFit, compared: pl.DataFrame) -> list[str]:
    """Says what a fit gains over softmax, and over one constant θ, in the mean of the lengths; nothing if not compared.

    Fit and constant were chosen on other sets and, of several seeds, on the other half of them: so where the fit to all
    seeds is softmax, those to a half may not be. One of a single seed then has nothing to gain.
    """
    means = compared.group_by("normalizer", "seed", maintain_order=True).agg(pl.mean("accuracy"))
    by_seed = dict(means.group_by("normalizer").agg("accuracy").rows())
    seeds, lengths = len(by_seed.get(name, [])), compared["n"].n_unique()
    if not seeds or (seeds == 1 and is_softmax(fit)):
        return []
    constant = [(BEST_OF_ALL, "one constant θ")] if len(fit.coefficients) > 1 else []
    parts = []
    for other, called in [(BASELINE, BASELINE), *constant]:
        differences = np.subtract(by_seed[name], by_seed[other]).tolist()
        mean, half = float(np.mean(differences)), half_width(differences)
        interval = "" if half is None else f" ± {half:.2f} ({'' if abs(mean) > half else 'not '}beyond chance)"
        parts.append(f"{mean:+.2f}{interval} points over {called}")
    who, drawn = "it gains", "one seed, so no interval"
    if seeds > 1:
        who, drawn = "fits to one half of the seeds gain in the other half", f"95 % over {seeds} seeds"
    start = "The table has other fits: on" if is_softmax(fit) else "On"
    return [f"{start} fresh sets, in the mean of {lengths} lengths, {who} {' and '.join(parts)} ({drawn})."]


def beside_published(fit: TemperatureFit) -> str:
    """Says how a fit lies to the published polynomial."""
    frame = curve_frame({"fit": fit})
    if frame.is_empty():
        return "Its range holds no entropy at which the published polynomial is tabulated."
    if fit.band:
        inside = [holds(entropy, low, high) for entropy, low, high in frame.select("entropy", *ENDS).rows()]
        first, last = frame["entropy"].min(), frame["entropy"].max()
        where = f"{len(inside)} entropies from {first:g} to {last:g} nats"
        return f"Its 95 % band holds the published polynomial at {sum(inside)} of {where}."
    entropy, beta = frame.select("entropy", "beta").row(len(frame) // 2)
    published_beta = PUBLISHED_AT[entropy]
    return f"At {entropy:g} nats it has β = {beta:.2f}, and the published polynomial {published_beta:.2f}."


def curves(fits: Mapping[str, TemperatureFit]) -> dict[str, Curve]:
    """Returns the published polynomial and the fitted ones, by the rules of the method: β ≥ 1, and 1 for low H."""
    functions = {PUBLISHED: published} | {name: fit.curve for name, fit in fits.items()}
    return {name: fitting.ruled(function) for name, function in functions.items()}


def entropy_chart(rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit]) -> charts.Chart:
    """Draws 1/θ* against H: density of the rows' own optima, and the published and fitted curves with their bands."""
    joined = fitting.join(rows.values())
    flat = joined.entropy > fitting.THRESHOLD
    highest = float(joined.entropy.max())
    grid = np.linspace(0, highest, 241)
    frames = [
        pl.DataFrame({"curve": name, "entropy": grid, "value": curve(grid)}) for name, curve in curves(fits).items()
    ]
    bands = [
        pl.DataFrame({"curve": name, **fit.band}).with_columns(pl.col("low", "high").clip(*BETA_RANGE))
        for name, fit in fits.items()
        if fit.band
    ]
    colours = palette([PUBLISHED, *fits])
    colour = charts.colour_by("curve", colours, legend=False)
    scale = alt.Scale(domain=[0, highest], nice=False)
    x = alt.X("entropy:Q", title="entropy H of the row under softmax (nats)", scale=scale)
    y = alt.Y("value:Q", title="inverse temperature 1/θ", scale=alt.Scale(type="log", base=2, domain=BETA_RANGE))
    under = [
        density_layer(joined.entropy[flat], 1 / joined.theta[flat], highest),
        *(charts.band(band, x, y, colour) for band in bands),
    ]
    statement = "nothing is fitted to these models yet"
    notes = ["grey: each row's own optimum (at the top and bottom edge: none inside the range)"]
    if fits:
        name, widest = max(fits.items(), key=lambda named: len(named[1].lengths))
        statement = f"{name}, {kind(widest)}"
        notes = [f"{notes[0]}; bands: 95 % over seeds", *([charts.FAIR] if fitting.ALL_LENGTHS in fits else [])]
    title = charts.chart_title(f"The best temperature by entropy: {statement}", *notes)
    return charts.named_lines(
        pl.concat(frames), x, y, title, field="curve", colours=colours, under=under, point=False, width=520, height=380
    )


def row_frame(rows: Mapping[int, Rows], seeds: Sequence[int]) -> pl.DataFrame:
    """Returns the entropy and best temperature of each row of attention; `seeds` are those of the leading axis."""
    return pl.concat(
        charts.long_frame(
            {"n": [n], "seed": seeds, "row": range(at_length.entropy.shape[1])},
            entropy=at_length.entropy,
            theta=at_length.theta,
            on_border=at_length.border,
        ).drop("row")
        for n, at_length in rows.items()
    )


def density_layer(entropies: np.ndarray, betas: np.ndarray, highest: float) -> alt.Chart:
    """Draws the rows in each cell of a grid of entropy and log β, as shades of grey."""
    edges = np.linspace(0, highest, 81), np.linspace(math.log2(BETA_RANGE[0]), math.log2(BETA_RANGE[1]), 46)
    counts, _, _ = np.histogram2d(entropies, np.log2(np.clip(betas, *BETA_RANGE)), edges)
    i, j = np.nonzero(counts)
    x, y = edges[0], 2 ** edges[1]
    cells = pl.DataFrame({"x": x[i], "x2": x[i + 1], "y": y[j], "y2": y[j + 1], "rows": counts[i, j]})
    shade = alt.Opacity("rows:Q", scale=alt.Scale(type="log", range=[0.15, 1]), title="rows per cell")
    marks = alt.Chart(charts.data(cells)).mark_rect()
    return marks.encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q", color=alt.value(GREY), opacity=shade)


def write_study(
    output: Path,
    rows: Mapping[int, Rows],
    fits: Mapping[str, TemperatureFit],
    compared: pl.DataFrame,
    paper: Paper | None = None,
) -> list[Path]:
    """Writes the fits, the comparison and the chart; returns the paths."""
    paths = [output / FITS[name] for name in fits]
    for path, fit in zip(paths, fits.values()):
        fit.save(path)
    table = output / "temperature" / "comparison.csv"
    write_csv(table, compared.columns, compared.rows())
    return [*paths, table, *save_chart(entropy_chart(rows, fits), table.with_name("entropy"), paper)]
