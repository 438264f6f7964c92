"""Claims of the page on language models."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import DATA, half, holm, listed, read, with_half
from softmax_jax.experiment.language_models.measures import paired_losses
from softmax_jax.experiment.measures.significance import corrected
from studies.clrs_text import page as clrs_text

PAGE = "docs/language_models.md"
SETTINGS = {
    PAGE: (
        "1.2 million parameters",
        "θ = 0.8",
        "half the 95 % interval",
        "a constant temperature of 1.1",
        "starts at 1.5",
    )
}
LEARNED = " learned on "
WORDS = {4: "four", 5: "five", 7: "seven", 11: "eleven"}


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
    yield PAGE, f"{WORDS[len(names)]} normalizers, {WORDS[len(names) - whole]} of them only up to 1,024 or 4,096 tokens"
    costs = paired_losses(read("pretrained/losses.csv")).filter(normalizer="adaptive")["more"]
    yield PAGE, f"costs {costs.min():.1f} to {costs.max():.1f} nats a token"


def dispersion() -> Iterator[tuple[str, str]]:
    heads = read("pretrained/heads.csv")
    slopes = {}
    for text in ("prose", "code"):
        part = heads.filter(pl.col("below") >= 128, text=text).sort("below")
        entropies = part.pivot("below", index=["layer", "head"], values="entropy").drop("layer", "head")
        slopes[text] = np.polyfit(np.log(np.array(entropies.columns, float)), entropies.to_numpy().T, 1)[0]
    prose, code = (slopes[text].mean() for text in ("prose", "code"))
    yield PAGE, f"by {prose:.2f} nats for each nat of log n on prose, and by {code:.2f} on code"
    steep = slopes["prose"] > 0.5
    yield PAGE, f"On prose {steep.sum()} of {steep.size} heads grow by more than one half"


def facts_in_texts() -> Iterator[tuple[str, str]]:
    frame = read("pretrained/needles.csv", normalizer="softmax")
    single = frame.filter(facts=1, heads=0).group_by("length").agg(pl.sum("right"), pl.len()).sort("length")
    assert (single["right"] == single["len"]).all()
    counts = dict(single.select("length", "len").rows())
    yield (
        PAGE,
        f"all {sum(counts.values())} texts, of which {counts[8192]} have 8,192 tokens",
    )
    eight = frame.filter(facts=8, heads=0).group_by("length").agg(pl.mean("right"))
    share = {length: 100 * right for length, right in eight.rows()}
    yield PAGE, f"{share[256]:.0f} % of texts of 256 tokens and {share[4096]:.0f} % of 4,096"


def learned_on_needles() -> Iterator[tuple[str, str]]:
    counts = read("pretrained/needles.csv", facts=8, heads=0).group_by("normalizer", "length")
    right = {
        (name, length): (found, len_) for name, length, found, len_ in counts.agg(pl.sum("right"), pl.len()).rows()
    }
    found, asked = right["theta learned on needle", 512]
    yield PAGE, f"answers {found} of {asked} questions, where softmax answers {right['softmax', 512][0]}"
    placebo = [found for (name, length), (found, _) in right.items() if name.endswith("on text") and length == 512]
    yield PAGE, f"the placebo, they answer {min(placebo)} to {max(placebo)}"
    costs = paired_losses(read("pretrained/losses.csv")).filter(pl.col("below") == 1024)
    costs = costs.filter(pl.col("normalizer").str.ends_with(" learned on needle"))["more"]
    yield PAGE, f"cost {costs.min():.2f} to {costs.max():.2f} nats at 512 to 1,024 tokens"


def minilm() -> Iterator[tuple[str, str]]:
    means = read("minilm.csv").group_by("layer", "n").agg(pl.mean("entropy"))
    entropy = {(layer, n): value for layer, n, value in means.rows()}
    rises = [entropy[layer, 512] - entropy[layer, 64] for layer in means["layer"].unique()]
    layers = f"the entropy of its six layers by {min(rises):.2f} to {max(rises):.2f}"
    yield PAGE, f"log n grows by {np.log(8):.2f}, and {layers}"
    found = read("needle/accuracy.csv").sort("n", "round")
    accuracy = {(name, n): values for name, n, values in found.group_by("normalizer", "n").agg("accuracy").rows()}
    lengths = found["n"].unique().sort().to_list()
    uniform = [name for name in found["normalizer"].unique() if "by head" not in name and name != "softmax"]
    learned = ["θ by head", "s by head", "s by head, held beyond 64"]
    cells = [(name, n) for name in (*uniform, *learned) for n in lengths if name != learned[-1] or n > 64]
    p_values = dict(zip(cells, holm((accuracy[cell], accuracy["softmax", cell[1]]) for cell in cells)))
    assert all(p_values[name, n] > 0.05 for name in uniform for n in lengths)
    shown = [n for n in lengths if p_values["s by head", n] < 0.05]
    assert len(uniform) == 4
    yield PAGE, f"The gain is shown at {listed(shown)} tokens (Holm over {len(cells)} tests)"
    means_at = [
        "from {:.1f} to {:.1f} %".format(*(np.mean(accuracy[name, n]) for name in ("softmax", "s by head")))
        for n in (64, 512)
    ]
    yield PAGE, f"{means_at[0]} at 64 tokens, and {means_at[1]} at 512"
    held = {n: np.subtract(accuracy[learned[-1], n], accuracy["s by head", n]).tolist() for n in (256, 512)}
    yield PAGE, f"right answers change by {with_half(held[512], '+.1f')} points"
    assert abs(np.mean(held[256])) < half(held[256])


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
    assert costs.min() > 0
    yield PAGE, f"On all {WORDS[len(costs)]} it loses at the lengths of training, at most {costs.max():.1f}"
    kept = beyond.with_columns(holm=pl.Series(corrected(beyond["p"].to_list()), dtype=pl.Float64))
    shown = kept.filter(pl.col("holm") < 0.05)
    assert shown["algorithm"].to_list() == ["quickselect"]
    yield (
        PAGE,
        f"the temperature gains only on `quickselect` at greater lengths, by {shown['mean'].item():.1f} points "
        f"(p = {shown['holm'].item():.2g})",
    )
    lost = -read("clrs_text/swapped.csv", regime="adaptive")["gain"]
    yield PAGE, f"loses {lost.min():.0f} to {lost.max():.0f} points at the lengths of training"
    constants = read("clrs_text/numbers.csv").filter(regime="constant")["constant"]
    yield PAGE, f"({constants.min():.2f} to {constants.max():.2f})"


def over_the_untuned_model() -> Iterator[tuple[str, str]]:
    tuned = clrs_text.complete(read("clrs_text/answers.csv"))
    gains = {
        n: np.subtract(
            *(clrs_text.by_run(tuned, name, clrs_text.SORTED, [n]).mean(1) for name in ("adaptive", clrs_text.UNTUNED))
        )
        for n in clrs_text.BEYOND
    }
    assert [n for n, gain in gains.items() if gain.mean() > half(gain)] == [64]
    yield PAGE, f"its interval lies above 0 only at 64 numbers ({with_half(gains[64], '+.1f')})"


def smollm2_tuned() -> Iterator[tuple[str, str]]:
    """Compares SmolLM2 tuned under each regime with softmax, from each seed, at the lengths that it sorts at all."""
    answers = pl.read_csv(DATA / "clrs_text" / "pretrained_answers.csv", schema_overrides={"right": pl.String})
    counts = answers.filter(pl.col("n") > 16, stage="tuned").with_columns(
        right=pl.col("right").str.count_matches("1"), sets=pl.col("right").str.len_chars()
    )
    share = 100 * pl.col("right").sum() / pl.col("sets").sum()
    best = counts.group_by("n", "regime").agg(share=share).group_by("n").agg(pl.max("share")).sort("n")
    assert best.filter(pl.col("share") > 5)["n"].to_list() == [20, 24]
    kept = counts.filter(pl.col("n").is_in([20, 24]))
    assert set(kept.group_by("regime", "seed").agg(pl.sum("sets"))["sets"]) == {100}
    rows = kept.group_by("regime", "seed").agg(share=share).rows()
    right = {(regime, seed): value for regime, seed, value in rows}
    first, second = (right["adaptive", seed] - right["softmax", seed] for seed in (0, 1))
    yield PAGE, f"the adaptive temperature gains {first:.0f} and {second:.0f} points"
    first, second = (right["constant", seed] - right["softmax", seed] for seed in (0, 1))
    yield PAGE, f"a constant that starts at 1 gains {first:.0f} points from one seed and {second:.0f} from the other"
