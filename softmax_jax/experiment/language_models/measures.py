"""Measures a pretrained model: the loss of every token, and what its heads do, by position."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float, Int

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Parameters, Sizes, Weigh, by_softmax, hidden, losses
from softmax_jax.experiment.measures.significance import half_width
from softmax_jax.transforms.probe import SiteRows

ROW_MEASURES = ("entropy", "largest", "first", "top", "gap", "spread", "log_sum_exp")
"""Measures of rows, by their names in `softmax_jax.probe`."""
HEAD_MEASURES = (*ROW_MEASURES, "sinks", "first_norm", "norm")
"""Besides: the share of rows that give the first token more than `SINK`, the norm of its value, and the mean norm."""
HEAD_COLUMNS = ("text", "passage", "layer", "head", "below", *HEAD_MEASURES)
SINK = 0.3
LOSS_COLUMNS = ("normalizer", "text", "length", "passage", "below", "loss", "tokens")
"""Columns of the losses: their sum over the tokens that follow at least the last edge and fewer than `below`."""


@functools.partial(jax.jit, static_argnames=("sizes", "weigh", "together"))
def passage_losses(
    parameters: Parameters,
    tokens: Int[Array, "passages length"],
    numbers: Any,
    sizes: Sizes,
    weigh: Weigh,
    together: int = 1,
) -> Float[Array, "passages following"]:
    """Returns the loss of every token but the first of each passage, `together` passages at a time."""

    def losses_of_passage(tokens: Int[Array, " length"]) -> Array:
        return losses(parameters, hidden(parameters, sizes, tokens, weigh, numbers)[0], tokens)

    return jax.lax.map(losses_of_passage, tokens, batch_size=together)


def bins(edges: Sequence[int], rows: int) -> Bool[np.ndarray, "bins rows"]:
    """Marks the rows that see n tokens, n = 1 … rows, by the bin of n: from one edge to below the next, from 1.

    >>> bins((2, 4), 4).astype(int).tolist()
    [[1, 0, 0, 0], [0, 1, 1, 1]]
    """
    place = np.searchsorted(np.asarray(edges), np.arange(1, rows + 1), "right").clip(max=len(edges) - 1)
    return place == np.arange(len(edges))[:, None]


@functools.partial(jax.jit, static_argnames=("sizes", "edges"))
def head_measures(
    parameters: Parameters, tokens: Int[Array, "passages length"], sizes: Sizes, edges: tuple[int, ...]
) -> dict[str, Float[Array, "passages layers heads bins"]]:
    """Returns `HEAD_MEASURES` of every head under its own softmax, as means over the rows of each bin."""

    def measure_passage(tokens: Int[Array, " length"]) -> dict[str, Array]:
        probed = sj.probe(lambda tokens: hidden(parameters, sizes, tokens, by_softmax)[1].value)
        values, sites = probed(tokens)
        row_measures = {name: _in_order(sites, name)[..., : len(tokens)] for name in ROW_MEASURES}
        return mean_measures(row_measures, values.swapaxes(1, 2), edges)

    return jax.lax.map(measure_passage, tokens)


def mean_measures(
    row_measures: dict[str, Float[Array, "layers heads rows"]],
    values: Float[Array, "layers key_heads rows size"],
    edges: Sequence[int],
) -> dict[str, Float[Array, "layers heads bins"]]:
    """Returns `HEAD_MEASURES` as means over the rows of each bin, from those of the rows and from the heads' values."""
    _, heads, rows = row_measures["entropy"].shape
    in_bin = bins(edges, rows)
    means = jnp.asarray(in_bin / in_bin.sum(1, keepdims=True), jnp.float32)
    norms = jnp.repeat(jnp.linalg.norm(values, axis=-1), heads // values.shape[1], 1)
    measures = row_measures | {"sinks": (row_measures["first"] > SINK).astype(jnp.float32), "norm": norms}
    measures["first_norm"] = jnp.broadcast_to(norms[..., :1], norms.shape)
    return {name: jnp.einsum("lhr,br->lhb", each, means, precision="highest") for name, each in measures.items()}


def _in_order(sites: list[SiteRows], name: str) -> Float[Array, "layers heads rows"]:
    """Returns a measure of all rows of every head, of the segments and blocks that the decoder attends in."""
    segments = []
    for site in sites:
        rows = getattr(site, name)
        if rows.ndim == 4:  # (layers, blocks, heads, queries)
            rows = rows.swapaxes(1, 2)
        segments.append(rows.reshape(*rows.shape[:2], -1))
    return jnp.concatenate(segments, -1)


def loss_rows(
    normalizer: str, text: str, losses: Float[Array | np.ndarray, "passages following"], edges: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Returns the rows of `LOSS_COLUMNS`."""
    length = losses.shape[1] + 1
    for passage, each in enumerate(np.asarray(losses, np.float64)):
        for below, chosen in zip(edges, bins(edges, length - 1)):
            if chosen.any():
                yield normalizer, text, length, passage, below, float(each[chosen].sum()), int(chosen.sum())


def head_rows(text: str, measured: dict[str, Array], edges: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Returns the rows of `HEAD_COLUMNS`, to five digits."""
    measured = jax.device_get(measured)
    for place in np.ndindex(measured["entropy"].shape):
        yield text, *place[:3], edges[place[3]], *(float(f"{measured[name][place]:.5g}") for name in HEAD_MEASURES)


def entropy_slopes(heads: pl.DataFrame, edges: Sequence[int]) -> pl.DataFrame:
    """Returns the slope of the entropy in log n, for each text, layer and head, by least squares over the bins.

    The means over passages are fitted, at the mean log n of each bin, from the second bin on. A head that weighs all
    it sees alike has slope 1, a head that keeps looking at as many tokens slope 0.
    """
    in_bin = bins(edges, max(edges))
    places = {below: float(np.log(1 + np.flatnonzero(rows)).mean()) for below, rows in zip(edges, in_bin)}
    later = heads.filter(pl.col("below") > min(edges)).with_columns(x=pl.col("below").replace_strict(places))
    means = later.group_by("text", "layer", "head", "below", maintain_order=True).agg(pl.mean("entropy", "x"))
    slope = pl.cov("entropy", "x") / pl.var("x")
    return means.group_by("text", "layer", "head", maintain_order=True).agg(slope=slope)


def paired_losses(losses: pl.DataFrame, reference: str = "softmax") -> pl.DataFrame:
    """Returns for each normalizer, text and bin the loss, and what it has more than the reference, with an interval.

    Passages are weighed alike; `half` is half the 95 % interval of the difference over them, by Student's t.
    """
    keys = ["text", "length", "passage", "below"]
    each = losses.with_columns(loss=pl.col("loss") / pl.col("tokens"))
    reference_losses = each.filter(normalizer=reference).select(*keys, own="loss")
    pairs = each.join(reference_losses, keys, maintain_order="left").with_columns(more=pl.col("loss") - pl.col("own"))
    groups = pairs.group_by("normalizer", "text", "below", maintain_order=True)
    means = groups.agg(pl.mean("loss", "more"), passages=pl.len(), each=pl.col("more"))
    halves = [half_width(values) for values in means["each"].to_list()]
    return means.drop("each").with_columns(half=pl.Series(halves, dtype=pl.Float64))
