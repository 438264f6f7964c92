"""Claims of the page on language models."""

from collections.abc import Iterator

import polars as pl

from docs.claims import read


def facts_in_texts() -> Iterator[tuple[str, str]]:
    frame = read("pretrained/needles.csv", normalizer="softmax")
    single = frame.filter(facts=1, heads=0).group_by("length").agg(pl.sum("right"), pl.len()).sort("length")
    assert (single["right"] == single["len"]).all()
    counts = dict(single.select("length", "len").rows())
    yield (
        "docs/pretrained.md",
        f"all {sum(counts.values())} texts ({counts[256]} each of 256 and 512 tokens, "
        f"{counts[2048]} of 2,048, {counts[8192]} of 8,192)",
    )
    eight = (
        frame.filter(pl.col("rows").is_in(["last", "none"]), facts=8)
        .group_by("heads", "help", "length")
        .agg(pl.sum("right"))
    )
    right = {key: value for *key, value in eight.rows() for key in [tuple(key)]}
    sentence = "{}, {}, {} and {} of 64, 64, 32 and 32 right by rank"
    yield "docs/pretrained.md", sentence.format(*(right[5, "rank", n] for n in (256, 512, 1024, 4096)))
    yield (
        "docs/pretrained.md",
        "{}, {}, {} and {} by temperature".format(*(right[5, "temperature", n] for n in (256, 512, 1024, 4096))),
    )
    yield (
        "docs/pretrained.md",
        "{}, {}, {} and {} without help".format(*(right[0, "neither", n] for n in (256, 512, 1024, 4096))),
    )


def minilm() -> Iterator[tuple[str, str]]:
    means = read("minilm.csv").group_by("layer", "n").agg(pl.mean("entropy"))
    rises = [
        means.filter(layer=layer, n=512)["entropy"].item() - means.filter(layer=layer, n=64)["entropy"].item()
        for layer in means["layer"].unique()
    ]
    yield "docs/any_model.md", f"by {min(rises):.2f} to {max(rises):.2f}"
