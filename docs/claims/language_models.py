"""Claims of the page on language models."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import DATA, holm, listed, read, with_half
from softmax_jax.experiment.language_models.measures import paired_losses
from softmax_jax.experiment.measures.significance import corrected
from studies.clrs_text import page as clrs_text

PAGE = "docs/language_models.md"
SETTINGS = {
    PAGE: (
        "1.2 million parameters",
        "(s = 0.24)",
        "θ = 0.8",
        "half the 95 % interval",
        "a constant temperature of 1.1",
        "starts at 1.5",
    )
}
LEARNED = " learned on "


def swapped_in() -> Iterator[tuple[str, str]]:
    """Tests every normalizer, text and range of tokens at which it is not softmax, over passages."""
    keys = ["text", "length", "passage", "below"]
    each = read("pretrained/losses.csv").with_columns(loss=pl.col("loss") / pl.col("tokens"))
    each = each.filter(~pl.col("normalizer").str.contains(LEARNED))
    softmax = each.filter(normalizer="softmax").select(*keys, softmax="loss")
    others = each.filter(pl.col("normalizer") != "softmax").join(softmax, keys)
    apart = (pl.col("loss") - pl.col("softmax")).abs().max().over("normalizer", "text", "below") > 1e-5
    cells = others.filter(apart).group_by("normalizer", "text", "below").agg("loss", "softmax")
    cells = cells.with_columns(p=pl.Series(holm(cells.select("loss", "softmax").rows()))).sort("below")
    change = pl.col("loss").list.mean() / pl.col("softmax").list.mean() - 1
    gains = cells.with_columns(change=100 * change).filter(pl.col("change") < 0, pl.col("p") < 0.05)
    assert set(gains.select("normalizer", "text").rows()) == {("temperature(1.1)", "prose")}
    assert gains["below"].to_list() == [64, 128]
    low, high = sorted(-gains["change"])
    yield PAGE, f"lowers the loss on prose by {low:.1f} to {high:.1f} % in rows of up to 128 tokens"
    yield PAGE, f"Of {len(cells)} tests"
    names = others.group_by("normalizer").agg(pl.max("below"))
    whole = names.filter(below=8192).height
    assert sorted(names.filter(pl.col("below") < 8192)["below"]) == [1024, 1024, 1024, 4096]
    words = {4: "four", 7: "seven", 11: "eleven"}
    yield PAGE, f"{words[len(names)]} normalizers, {words[len(names) - whole]} of them only up to 1,024 or 4,096 tokens"
    costs = paired_losses(read("pretrained/losses.csv")).filter(normalizer="adaptive")["more"]
    yield PAGE, f"costs {costs.min():.1f} to {costs.max():.1f} nats a token"


def parts_of_the_model() -> Iterator[tuple[str, str]]:
    means = read("pretrained/masked.csv").group_by("heads", "text").agg(pl.mean("loss"))
    loss = {(heads, text): value for heads, text, value in means.rows()}
    texts = ("prose", "code")
    layers = [max(loss[f"layer {layer}", text] for layer in range(30)) - loss["none", text] for text in texts]
    sharp, flat = ([loss[f"quarter {quarter}", text] - loss["none", text] for text in texts] for quarter in (1, 4))
    yield PAGE, "at most {:.2f} nats on prose and {:.2f} on code".format(*layers)
    yield PAGE, "{:.2f} and {:.2f} nats in the quarter of heads with the lowest entropy".format(*sharp)
    yield PAGE, "{:.2f} and {:.2f} in that with the highest".format(*flat)


def dispersion() -> Iterator[tuple[str, str]]:
    heads = read("pretrained/heads.csv")
    slopes = {}
    for text in ("prose", "code"):
        for least in (64, 128):
            part = heads.filter(pl.col("below") >= least, text=text).sort("below")
            entropies = part.pivot("below", index=["layer", "head"], values="entropy").drop("layer", "head")
            slopes[text, least] = np.polyfit(np.log(np.array(entropies.columns, float)), entropies.to_numpy().T, 1)[0]
    means = {key: value.mean() for key, value in slopes.items()}
    steep = {key: int((value > 0.5).sum()) for key, value in slopes.items()}
    yield PAGE, f"{means['prose', 128]:.2f} nats for each nat of log n on prose and {means['code', 128]:.2f} on code"
    yield PAGE, f"with them {means['prose', 64]:.2f} and {means['code', 64]:.2f}"
    yield PAGE, f"{steep['prose', 128]} and {steep['code', 128]} of {slopes['prose', 128].size} heads"
    yield PAGE, f"with them {steep['prose', 64]} and {steep['code', 64]}"
    spread = dict(heads.filter(text="prose").group_by("below").agg(pl.mean("spread")).rows())
    yield PAGE, f"from {spread[256]:.1f} to {spread[8192]:.1f} on prose"


def facts_in_texts() -> Iterator[tuple[str, str]]:
    frame = read("pretrained/needles.csv", normalizer="softmax")
    single = frame.filter(facts=1, heads=0).group_by("length").agg(pl.sum("right"), pl.len()).sort("length")
    assert (single["right"] == single["len"]).all()
    counts = dict(single.select("length", "len").rows())
    yield (
        PAGE,
        f"all {sum(counts.values())} texts ({counts[256]} each of 256 and 512 tokens, "
        f"{counts[2048]} of 2,048, {counts[8192]} of 8,192)",
    )
    eight = frame.filter(facts=8, heads=0).group_by("length").agg(pl.mean("right"))
    share = {length: 100 * right for length, right in eight.rows()}
    yield PAGE, f"{share[256]:.0f} % of texts of 256 tokens and {share[4096]:.0f} % of 4,096"
    right = frame.filter(facts=8, heads=20, help="temperature", rows="last", length=4096)["right"].to_numpy()
    yield PAGE, f"reaches {100 * right.mean():.0f} % there"


def learned_on_needles() -> Iterator[tuple[str, str]]:
    counts = read("pretrained/needles.csv", facts=8, heads=0).group_by("normalizer", "length")
    right = {
        (name, length): (found, len_) for name, length, found, len_ in counts.agg(pl.sum("right"), pl.len()).rows()
    }
    theta, others = "theta learned on needle", ("1 + alpha log(n / 256)", "gamma of the first", "s log n")
    yield (
        PAGE,
        f"{right[theta, 512][0]} of {right[theta, 512][1]} questions in 512 tokens (softmax {right['softmax', 512][0]}",
    )
    placebo = [found for (name, length), (found, _) in right.items() if name.endswith("on text") and length == 512]
    yield PAGE, f"the placebo, they answer {min(placebo)} to {max(placebo)}"
    needles = [right[f"{name} learned on needle", 512][0] for name in others]
    yield PAGE, f"the other three {min(needles)} or {max(needles)}"
    costs = paired_losses(read("pretrained/losses.csv")).filter(pl.col("below") == 1024)
    costs = costs.filter(pl.col("normalizer").str.ends_with(" learned on needle"))["more"]
    yield PAGE, f"costs {costs.min():.2f} to {costs.max():.2f} nats at 512 to 1,024 tokens"


def learned_on_text() -> Iterator[tuple[str, str]]:
    costs = paired_losses(read("pretrained/losses.csv"))
    costs = costs.with_columns(percent=100 * pl.col("more") / (pl.col("loss") - pl.col("more")))
    first = costs.filter(normalizer="gamma of the first learned on text")["percent"].to_numpy()
    yield PAGE, f"lowers the loss by {-first.max():.1f} to {-first.min():.1f} % in every range"
    growing = costs.filter(
        pl.col("normalizer").is_in(["1 + alpha log(n / 256) learned on text", "s log n learned on text"]), below=8192
    )["percent"]
    yield PAGE, f"{growing.min():.0f} to {growing.max():.0f} % at 4,096 to 8,192 tokens"


def minilm() -> Iterator[tuple[str, str]]:
    means = read("minilm.csv").group_by("layer", "n").agg(pl.mean("entropy"))
    entropy = {(layer, n): value for layer, n, value in means.rows()}
    rises = [entropy[layer, 512] - entropy[layer, 64] for layer in means["layer"].unique()]
    yield PAGE, f"by {min(rises):.2f} to {max(rises):.2f}, where log n grows by {np.log(8):.2f}"
    found = read("needle/accuracy.csv").sort("n", "round")
    accuracy = {(name, n): values for name, n, values in found.group_by("normalizer", "n").agg("accuracy").rows()}
    lengths = found["n"].unique().sort().to_list()
    uniform = [name for name in found["normalizer"].unique() if "by head" not in name and name != "softmax"]
    learned = ["θ by head", "s by head", "s by head, held beyond 64"]
    cells = [(name, n) for name in (*uniform, *learned) for n in lengths if name != learned[-1] or n > 64]
    p_values = dict(zip(cells, holm((accuracy[cell], accuracy["softmax", cell[1]]) for cell in cells)))
    assert all(p_values[name, n] > 0.05 for name in uniform for n in lengths)
    gains = {cell: np.mean(accuracy[cell]) - np.mean(accuracy["softmax", cell[1]]) for cell in cells}
    for name, words in (("s by head", "by {:.0f} to {:.0f} points"), ("θ by head", "by {:.0f} to {:.0f}")):
        row = [gains[name, n] for n in lengths]
        yield PAGE, words.format(min(row), max(row))
    shown = {name: [n for n in lengths if p_values[name, n] < 0.05] for name in ("s by head", "θ by head")}
    assert len(uniform) == 4
    yield PAGE, f"After Holm over {len(cells)} tests the gain is shown for s at {listed(shown['s by head'])} tokens"
    yield PAGE, f"for θ at {listed(shown['θ by head'])}"
    means_at = [
        "from {:.1f} to {:.1f} %".format(*(np.mean(accuracy[name, n]) for name in ("softmax", "s by head")))
        for n in (64, 512)
    ]
    yield PAGE, f"{means_at[0]} at 64 tokens, {means_at[1]} at 512"
    held = {n: np.subtract(accuracy[learned[-1], n], accuracy["s by head", n]).tolist() for n in (256, 512)}
    yield PAGE, f"({with_half(held[512], '+.1f')} points at 512 tokens, {with_half(held[256], '+.1f')} at 256)"


def decoders() -> Iterator[tuple[str, str]]:
    rows = read("clrs_text/contrasts.csv")
    sort = {
        (row["regime"], row["against"]): row
        for row in rows.filter(algorithm="insertion_sort", lengths="40 to 64").to_dicts()
    }
    gain = sort["adaptive", "softmax"]
    yield PAGE, f"{gain['mean']:.1f} points more often than tuned under softmax"
    untuned = sort["adaptive", "untuned"]
    yield PAGE, f"{untuned['mean']:+.1f} ± {untuned['high'] - untuned['mean']:.1f}"
    adaptive = rows.filter(regime="adaptive", against="softmax").sort("lengths", "algorithm")
    within, beyond = (adaptive.filter(lengths=lengths) for lengths in ("4 to 31", "40 to 64"))
    costs = -within["mean"].to_numpy()
    yield PAGE, f"it costs {costs.min():.1f} to {costs.max():.1f} points at the lengths of training"
    kept = beyond.with_columns(holm=pl.Series(corrected(beyond["p"].to_list()), dtype=pl.Float64))
    shown = kept.filter(pl.col("holm") < 0.05)
    assert shown["algorithm"].to_list() == ["quickselect"]
    yield (
        PAGE,
        f"`quickselect` gains at greater lengths, by {shown['mean'].item():.1f} points "
        f"(p = {shown['holm'].item():.2g})",
    )
    lost = -read("clrs_text/swapped.csv", regime="adaptive")["gain"]
    yield PAGE, f"loses {lost.min():.0f} to {lost.max():.0f} points at the lengths of training"
    constants = read("clrs_text/numbers.csv").filter(regime="constant")["constant"]
    yield PAGE, f"({constants.min():.2f} to {constants.max():.2f})"


def smollm2_tuned() -> Iterator[tuple[str, str]]:
    answers = pl.read_csv(DATA / "clrs_text" / "pretrained_answers.csv", schema_overrides={"right": pl.String})
    lines = clrs_text.pretrained_table(answers, range(4, 17)).splitlines()
    gains = {cells[1].strip(): cells[-2].strip() for line in lines[2:] if (cells := line.split("|"))}
    first, second = (float(gain) for gain in gains["constant per head, from 1"].split("; "))
    yield PAGE, f"The constant gains {first:.0f} points from one seed and {second:.0f} from the other"
