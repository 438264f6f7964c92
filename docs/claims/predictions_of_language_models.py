"""The lines of the page of predictions: language models, and decoders of algorithms."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import predicted, read, verdict, with_half
from softmax_jax.experiment.language_models.measures import paired_losses

Line = tuple[str, str]


def pretrained() -> Iterator[Line]:
    costs = paired_losses(read("pretrained/losses.csv"))
    costs = costs.with_columns(change=100 * pl.col("more") / (pl.col("loss") - pl.col("more")))
    adaptive = costs.filter(normalizer="adaptive").pivot("text", index="below", values="more")
    least, cheaper = (
        adaptive.select(pl.min_horizontal("code", "prose").min()).item(),
        (adaptive["code"] < adaptive["prose"]).sum(),
    )
    long = costs.filter(below=8192)
    swapped = long.filter(~pl.col("normalizer").str.contains(" learned on ")).sort("change")
    masked = read("pretrained/masked.csv").group_by("heads", "text").agg(pl.mean("loss"))
    loss = {key: value for *key, value in masked.rows() for key in [tuple(key)]}
    extra = {key: value - loss["none", key[1]] for key, value in loss.items()}
    layer = max(value for (heads, _), value in extra.items() if heads.startswith("layer"))
    ratios = [extra["quarter 1", text] / extra["quarter 4", text] for text in ("prose", "code")]
    heads = read("pretrained/heads.csv")
    slopes = []
    for text in ("prose", "code"):
        part = heads.filter(pl.col("below") >= 128, text=text).sort("below")
        wide = part.pivot("below", index=["layer", "head"], values="entropy").drop("layer", "head")
        slopes.append(np.polyfit(np.log(np.array(wide.columns, float)), wide.to_numpy().T, 1)[0])
    ends = heads.filter(pl.col("below").is_in([256, 8192])).group_by("text", "below").agg(pl.mean("spread", "first"))
    spread, first = (
        {(text, n): value for text, n, value in ends.select("text", "below", name).rows()}
        for name in ("spread", "first")
    )
    growth = [(spread[text, 8192] - spread[text, 256]) / 5 for text in ("prose", "code")]
    fall = [100 * (1 - first[text, 8192] / first[text, 256]) for text in ("prose", "code")]
    learned = {(name, text): value for name, text, value in long.select("normalizer", "text", "change").rows()}
    gains = [-learned[f"{name} learned on text", "prose"] for name in ("gamma of the first", "theta")]
    needle = costs.filter(pl.col("normalizer").str.ends_with(" learned on needle"), below=1024)
    harmed = (needle.group_by("normalizer").agg(pl.min("change"))["change"] > 0.5).sum()
    yield from predicted(
        [
            (
                "The adaptive temperature costs at least 0.3 nats at any length, less on code",
                verdict(least > 0.3, cheaper == adaptive.height),
                f"{least:.1f} or more; less in {cheaper} of {adaptive.height} ranges",
            ),
            (
                "No swap lowers the loss beyond 4,096 tokens by 0.5 %; θ = 0.95 is best",
                verdict(swapped["change"][0] > -0.5, swapped["normalizer"][0] == "temperature(0.95)"),
                f"the first token halved is, {swapped['change'][0]:.1f} %",
            ),
            (
                "One layer costs at most 0.1 nats, the sharpest quarter a tenth of the flattest",
                verdict(layer < 0.1, max(ratios) < 0.1),
                "{:.2f} nats; {:.2f} on prose, {:.2f} on code".format(layer, *ratios),
            ),
            (
                "Entropy grows by 0.2 to 0.4 nats per log n, by 0.5 in under a third of heads, by 0.9 in a tenth",
                verdict(
                    all(0.2 < slope.mean() < 0.4 for slope in slopes),
                    all((slope > 0.5).sum() < 90 for slope in slopes),
                    all((slope > 0.9).sum() < 27 for slope in slopes),
                ),
                f"{slopes[0].mean():.2f}; {(slopes[0] > 0.5).sum()} and {(slopes[0] > 0.9).sum()} of 270",
            ),
            (
                "The spread grows by 0.5 to 1.5 a doubling",
                verdict(max(growth) < 1.5),
                "{:.1f} and {:.1f}".format(*growth),
            ),
            (
                "The first token loses a quarter of its weight",
                "undecided",
                "{:.0f} % on prose, {:.0f} on code".format(*fall),
            ),
            (
                "Needles: 95 % found in short texts, 40 to 90 % in long",
                "undecided",
                "all, in three long texts",
            ),
            (
                "Rank (the answer gets the row's largest logit) gives back more lost needles than temperature",
                "not measured",
                "none was lost",
            ),
            (
                "Learned on text nothing gains 0.5 %",
                verdict(max(gains) < 0.5),
                "the first token's factor {:.1f} %, θ {:.1f}".format(*gains),
            ),
            ("Learned on needles θ and α find 5 points more", "not measured", "none was lost"),
            ("Learned on needles two of four cost 0.5 % on text", verdict(harmed >= 2), f"{harmed} do"),
        ]
    )


def facts() -> Iterator[Line]:
    frame = read("pretrained/needles.csv", facts=8)
    softmax = frame.filter(normalizer="softmax")
    plain = softmax.filter(heads=0).select("length", "sample", plain="right")
    share = {n: 100 * value for n, value in plain.group_by("length").agg(pl.mean("plain")).rows()}
    helped = softmax.filter(heads=20).join(plain, ["length", "sample"])
    wrong = helped.filter(plain=0).group_by("help", "rows", "length").agg(pl.mean("right") * 100)
    repaired = {(by, rows): values for by, rows, values in wrong.group_by("help", "rows").agg("right").rows()}
    mended = helped.filter(help="temperature").with_columns(mended=(pl.col("right") > pl.col("plain")) * 100)
    cells = {(rows, n): value for rows, n, value in mended.group_by("rows", "length").agg(pl.mean("mended")).rows()}
    growth = {rows: cells[rows, 4096] - cells[rows, 256] for rows in ("all", "last")}
    rank = min(repaired["rank", "all"] + repaired["rank", "last"])
    temperature = [
        value
        for rows in ("all", "last")
        for value in (min(repaired["temperature", rows]), max(repaired["temperature", rows]))
    ]
    at_512 = frame.filter(heads=0, length=512).group_by("normalizer").agg(pl.mean("right") * 100)
    right = {name: value - dict(at_512.rows())["softmax"] for name, value in at_512.rows()}
    names = [
        f"{name} learned on {source}" for source in ("needle", "text") for name in ("theta", "1 + alpha log(n / 256)")
    ]
    minilm = read("needle/accuracy.csv", n=512).sort("round")
    learned, kept = (
        minilm.filter(normalizer=f"s by head{more}")["accuracy"].to_numpy() for more in ("", ", held beyond 64")
    )
    held = kept - learned
    yield from predicted(
        [
            (
                "Of eight facts 60 to 85 % in 256 tokens, two thirds of that in 4,096",
                verdict(60 < share[256] < 85 and share[4096] < share[256] * 2 / 3),
                f"{share[256]:.0f} and {share[4096]:.0f} %",
            ),
            (
                "Rank repairs over half of the wrong answers, temperature under a quarter",
                verdict(rank > 50, max(temperature) < 25),
                f"{rank:.0f} % and more; {min(temperature):.0f} to {max(temperature):.0f} %",
            ),
            (
                "Temperature's repairs grow by under 10 points to 4,096 tokens",
                verdict(growth["all"] < 10, growth["last"] < 10),
                f"{growth['all']:+.0f} in all rows, {growth['last']:+.0f} in the last",
            ),
            (
                "Learned on one needle, θ and α find at most 10 points more; placebos stay within 10",
                verdict(
                    max(right[name] for name in names[:2]) <= 10, all(abs(right[name]) <= 10 for name in names[2:])
                ),
                "{:+.0f} and {:+.0f}; {:+.0f} and {:+.0f}".format(*(right[name] for name in names)),
            ),
            (
                "MiniLM needs no growth with log n, within 5 points",
                verdict(abs(held.mean()) < 5),
                with_half(held, "+.1f"),
            ),
        ]
    )
