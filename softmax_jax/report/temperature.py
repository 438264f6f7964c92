"""The temperature fit as tables for a terminal and as charts."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from softmax_jax.measures.evaluation import Row, Summary, paired_p_value, summarize
from softmax_jax.measures.refit import ALL_LENGTHS, BEST_FOR_LENGTH, TRAIN_LENGTHS
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.report.charts import FAIR, GREY, PALETTE, Chart
from softmax_jax.report.tables import number_or_dash
from softmax_jax.temperature import (
    LOG_THETA,
    THETA_RANGE,
    THRESHOLD,
    Candidate,
    Criterion,
    Curve,
    Rows,
    TemperatureFit,
    apply_curve,
    join,
    points,
    polynomial_curve,
    ruled,
)

PUBLISHED = "adaptive"
PUBLISHED_RANGE = (0.849, 5.945)
"""Entropies in nats between which the published polynomial exceeds 1."""
LEAST_GAP = 1.0
"""Percentage points that the best constant temperature must gain for a share of the gain to mean something."""


def new_table(title: str, first: str, columns: Sequence[str]) -> Table:
    """A table with a name per row and right-aligned numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_by_length(
    console: Console, title: str, rows: Mapping[str, Mapping[int, str]], lengths: Sequence[int], width: int = 8
) -> None:
    """Prints cells by name and length, as many lengths side by side as fit the console."""
    per_table = max(1, (console.width - 3 - max(map(len, rows))) // width)
    for start in range(0, len(lengths), per_table):
        some = lengths[start : start + per_table]
        table = new_table(title if start == 0 else "", "items", [str(n) for n in some])
        for name, cells in rows.items():
            table.add_row(name, *[cells.get(n, "–") for n in some])
        console.print(table)


def print_fits(console: Console, fits: Mapping[str, TemperatureFit]) -> None:
    """Prints coefficients with intervals, the range, R², and by length the rows covered and those on the border."""
    for name, fit in fits.items():
        low, high = fit.entropy_range
        table = new_table(f"{name}, by {fit.criterion}, from {lengths_in_words(fit)}", "power of H", ["β", "95 %"])
        for power, coefficient in zip(range(len(fit.coefficients) - 1, -1, -1), fit.coefficients):
            interval = "–" if fit.intervals is None else "{:.4g} … {:.4g}".format(*fit.intervals[-1 - power])
            table.add_row(str(power), f"{coefficient:.6g}", interval)
        console.print(table)
        console.print(
            f"for {low:.3f} ≤ H ≤ {high:.3f} nats (H is clamped to that), β from {fit.beta_at_ends[0]:.3g} to "
            f"{fit.beta_at_ends[1]:.3g}; R² on held-out sets {number_or_dash(fit.r_squared, '.2f')}\n",
            soft_wrap=True,
            highlight=False,
        )
    longest = max(fits.values(), key=lambda fit: len(fit.lengths))
    shares = {
        f"covered by {name}": {int(n): f"{share:.1f}" for n, share in fit.coverage.items()}
        for name, fit in fits.items()
    }
    shares["best θ on the border"] = {int(n): f"{share:.1f}" for n, share in longest.border.items()}
    print_by_length(console, "Rows, in %", shares, longest.lengths)
    console.print(
        "covered: H within the fitted range, or so low that β = 1 by rule; border: the loss falls on and on towards "
        f"an end of {THETA_RANGE[0]:.3g} ≤ θ ≤ {THETA_RANGE[1]:g}\n",
        style="dim",
    )


def lengths_in_words(fit: TemperatureFit) -> str:
    """The lengths of a fit, briefly."""
    return f"{len(fit.lengths)} lengths, {min(fit.lengths)} … {max(fit.lengths)} items"


def print_criteria(
    console: Console, rows: Mapping[int, Rows], fresh: Mapping[int, Rows], criteria: Sequence[Criterion], degree: int
) -> None:
    """Prints accuracy and loss on fresh sets of the polynomial that each criterion gives."""
    cells: dict[str, dict[int, str]] = {}
    everyone = np.ones(len(next(iter(rows.values())).entropy))
    for criterion in criteria:
        found = points(join(rows.values()), criterion)(everyone)
        try:
            curve = polynomial_curve(found, degree)
        except ValueError:
            cells[f"{criterion}: too few points"] = {}
            continue
        losses, errors = zip(*(apply_curve(curve, some) for some in fresh.values()))
        cells[f"{criterion}: accuracy"] = {n: f"{100 - 100 * error.mean():.1f}" for n, error in zip(fresh, errors)}
        cells[f"{criterion}: loss"] = {n: f"{loss.mean():.3f}" for n, loss in zip(fresh, losses)}
    print_by_length(console, f"Criteria, degree {degree}, on fresh sets", cells, list(fresh))


def print_candidates(console: Console, candidates: Sequence[Candidate], criterion: Criterion) -> None:
    """Prints how each form of the curve does on seeds left out of its fit, if any could be judged."""
    if not candidates:
        return
    table = new_table(
        f"Forms of β(H), by {criterion}, on seeds left out", "form", ["R²", "loss (nats)", "accuracy (%)"]
    )
    for candidate in candidates:
        cells = (number_or_dash(candidate.r_squared, ".3f"), f"{candidate.loss:.4f}", f"{candidate.accuracy:.2f}")
        table.add_row(candidate.name, *cells)
    console.print(table)


def print_comparison(console: Console, compared: Sequence[Row]) -> None:
    """Prints accuracy, loss, p against the published polynomial, and the share of the possible gain of every method."""
    summaries = {(summary.normalizer, summary.n): summary for summary in summarize(compared)}
    names = list(dict.fromkeys(row.normalizer for row in compared))
    lengths = sorted({row.n for row in compared})
    rows: dict[str, dict[int, str]] = {}
    for name in names:
        rows[f"{name}: accuracy"] = {n: f"{summaries[name, n].accuracy:.2f}" for n in lengths}
        if summaries[name, lengths[0]].interval is not None:
            rows[f"{name}: ±"] = {n: f"{summaries[name, n].interval:.2f}" for n in lengths}
        rows[f"{name}: loss"] = {n: f"{summaries[name, n].loss:.3f}" for n in lengths}
    print_by_length(console, "Fresh sets", rows, lengths)
    gains = {
        name: {n: share for n in lengths if (share := share_of_gain(summaries, name, n))}
        for name in names
        if name not in ("softmax", BEST_FOR_LENGTH)
    }
    if worth := [n for n in lengths if any(n in cells for cells in gains.values())]:
        title = f"Share in % of the accuracy that {BEST_FOR_LENGTH} gains over softmax"
        print_by_length(console, title, gains, worth)
    p_values = {}
    for name in names:
        if name.startswith(f"{PUBLISHED}_"):
            values = {n: p_against(compared, name, PUBLISHED, n) for n in lengths}
            p_values[name] = {n: number_or_dash(p, ".1g") for n, p in values.items()}
    if p_values:
        print_by_length(
            console, "P of the paired t-test over seeds against the published polynomial", p_values, lengths
        )
    console.print(
        "accuracy: % of sets, ± half the 95 % interval (t); loss: nats; best rising β(H): isotonic, fitted on other "
        f"sets; {BEST_FOR_LENGTH}: chosen on other sets, for accuracy and for loss; best θ for each set: needs the "
        f"answer. Only {TRAIN_LENGTHS} saw no length beyond training: claims about generalisation rest on it alone.",
        style="dim",
    )


def share_of_gain(summaries: Mapping[tuple[str, int], Summary], name: str, n: int) -> str | None:
    """Share of the gain in accuracy from softmax to the best constant temperature, where that is worth the name."""
    start, end = summaries["softmax", n].accuracy, summaries[BEST_FOR_LENGTH, n].accuracy
    return None if end - start < LEAST_GAP else f"{100 * (summaries[name, n].accuracy - start) / (end - start):.0f}"


def p_against(compared: Sequence[Row], name: str, reference: str, n: int) -> float | None:
    """The p-value of the paired t-test between two methods at a length."""
    ours, theirs = (
        [row.accuracy for row in compared if (row.normalizer, row.n) == (who, n)] for who in (name, reference)
    )
    return paired_p_value(ours, theirs)


def curves(fits: Mapping[str, TemperatureFit]) -> dict[str, Curve]:
    """The published polynomial and the fitted ones, with the rules of the adaptive method: β ≥ 1, and 1 for low H."""
    published = np.array(EntropyPolynomial.coefficients)
    return {PUBLISHED: ruled(lambda entropy: np.polyval(published, entropy))} | {
        name: ruled(fit.curve) for name, fit in fits.items()
    }


def entropy_chart(rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit]) -> Chart:
    """1/θ* against H: density of the rows' own optima, and the published and fitted curves with bands and ranges."""
    everything = join(rows.values())
    flat = everything.entropy > THRESHOLD
    highest = float(everything.entropy.max())
    lines = curves(fits)
    names = list(lines)
    colour = alt.Color(
        "curve:N",
        title="curve",
        scale=alt.Scale(domain=names, range=PALETTE[1 : 1 + len(names)]),
        legend=alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3),
    )
    x = alt.X(
        "entropy:Q", title="entropy H of the row under softmax (nats)", scale=alt.Scale(domain=[0, highest], nice=False)
    )
    y = alt.Y(
        "beta:Q",
        title="inverse temperature 1/θ",
        scale=alt.Scale(type="log", base=2, domain=[1 / THETA_RANGE[1], 1 / THETA_RANGE[0]]),
    )
    ranges = {PUBLISHED: PUBLISHED_RANGE} | {name: tuple(fit.entropy_range) for name, fit in fits.items()}
    spans = [{"curve": name, "low": low, "high": min(high, highest)} for name, (low, high) in ranges.items()]
    density = density_layer(everything.entropy[flat], 1 / everything.theta[flat], highest)
    shade = (
        alt.Chart(alt.Data(values=spans))
        .mark_rect(opacity=0.06, clip=True)
        .encode(x=alt.X("low:Q", scale=alt.Scale(domain=[0, highest], nice=False)), x2="high:Q", color=colour)
    )
    grid = np.linspace(0, highest, 241)
    drawn = [
        {"curve": name, "entropy": float(entropy), "beta": float(beta)}
        for name, curve in lines.items()
        for entropy, beta in zip(grid, curve(grid))
    ]
    line = alt.Chart(alt.Data(values=drawn)).mark_line(strokeWidth=3, clip=True).encode(x=x, y=y, color=colour)
    title = "Which temperature is best for a row of given entropy?"
    subtitle = [
        "grey: each row's own optimum (at the top and bottom edge: none inside the range)",
        "bands: 95 % over seeds; shaded: ranges of the fits, and where the published polynomial exceeds 1",
        *([FAIR] if ALL_LENGTHS in fits else []),
    ]
    return alt.layer(density, shade, *band_layers(fits, colour, x), line).properties(
        width=640, height=380, title=alt.TitleParams(title, subtitle=subtitle, anchor="start")
    )


def row_table(rows: Mapping[int, Rows], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What the charts show of each row, as dicts; `seeds` are those of the leading axis."""
    return [
        {"n": n, "seed": seed, "set": index + 1, "entropy": float(h), "theta": float(theta), "border": bool(border)}
        for n, some in rows.items()
        for seed, columns in zip(seeds, zip(some.entropy, some.theta, some.border))
        for index, (h, theta, border) in enumerate(zip(*columns))
    ]


def density_layer(entropies: np.ndarray, betas: np.ndarray, highest: float) -> alt.Chart:
    """Rows per cell of a grid of entropy and log β, as shades of grey."""
    edges = np.linspace(0, highest, 81), np.linspace(-np.log2(THETA_RANGE[1]), -np.log2(THETA_RANGE[0]), 46)
    counts, _, _ = np.histogram2d(entropies, np.clip(np.log2(betas), edges[1][0], edges[1][-1]), edges)
    cells = [
        {
            "x": edges[0][i],
            "x2": edges[0][i + 1],
            "y": 2 ** edges[1][j],
            "y2": 2 ** edges[1][j + 1],
            "rows": counts[i, j],
        }
        for i, j in zip(*np.nonzero(counts))
    ]
    return (
        alt.Chart(alt.Data(values=cells))
        .mark_rect()
        .encode(
            x="x:Q",
            x2="x2:Q",
            y="y:Q",
            y2="y2:Q",
            color=alt.value(GREY),
            opacity=alt.Opacity("rows:Q", scale=alt.Scale(type="log", range=[0.15, 1]), title="rows per cell"),
        )
    )


def band_layers(fits: Mapping[str, TemperatureFit], colour: alt.Color, x: alt.X) -> list[alt.Chart]:
    """The 95 % bands of the fits that have one."""
    low, high = 1 / THETA_RANGE[1], 1 / THETA_RANGE[0]
    banded = [
        {
            "curve": name,
            "entropy": entropy,
            "low": float(np.clip(bottom, low, high)),
            "high": float(np.clip(top, low, high)),
        }
        for name, fit in fits.items()
        if fit.band
        for entropy, bottom, top in zip(*fit.band.values())
    ]
    if not banded:
        return []
    chart = alt.Chart(alt.Data(values=banded)).mark_area(opacity=0.25, clip=True)
    return [chart.encode(x=x, y="low:Q", y2="high:Q", color=colour)]


def length_points(rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit]) -> list[dict[str, Any]]:
    """β by number of items: mean over rows of each curve, and the best constant for each length."""
    measured = [
        {"curve": name, "n": n, "beta": float(curve(some.entropy).mean())}
        for name, curve in curves(fits).items()
        for n, some in rows.items()
    ]
    return measured + [
        {"curve": BEST_FOR_LENGTH, "n": n, "beta": float(np.exp(-LOG_THETA[some.losses.mean((0, 1)).argmin()]))}
        for n, some in rows.items()
    ]


def length_chart(rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit]) -> Chart:
    """The `length_points` as lines."""
    measured = length_points(rows, fits)
    names = list(dict.fromkeys(point["curve"] for point in measured))
    return alt.layer(
        alt.Chart(alt.Data(values=measured))
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "n:Q", title="items in the set", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=list(rows))
            ),
            y=alt.Y("beta:Q", title="inverse temperature β, mean over rows", scale=alt.Scale(type="log", base=2)),
            color=alt.Color("curve:N", title="curve", scale=alt.Scale(domain=names, range=PALETTE[1 : 1 + len(names)])),
        )
    ).properties(
        width=640,
        height=360,
        title=alt.TitleParams(
            "How sharp does each method make attention as sets grow?",
            subtitle=[
                f"{BEST_FOR_LENGTH}: least mean loss, chosen on these sets",
                *([FAIR] if ALL_LENGTHS in fits else []),
            ],
            anchor="start",
        ),
    )
