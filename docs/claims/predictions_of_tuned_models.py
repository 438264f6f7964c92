"""The lines of the page of predictions: models that are tuned, or tested under others."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import DATA, predicted, read, verdict

Line = tuple[str, str]


def decoders() -> Iterator[Line]:
    frame = read("clrs_text/contrasts.csv", lengths="40 to 64")
    sort = {(row["regime"], row["against"]): row for row in frame.filter(algorithm="insertion_sort").to_dicts()}
    gain, equal = sort["adaptive", "softmax"], sort["adaptive", "ssmax"]
    plain, sharp, ssmax = (sort[name, "softmax"]["mean"] for name in ("constant", "sharp_constant", "ssmax"))
    lost = -read("clrs_text/swapped.csv", regime="adaptive")["gain"].to_numpy().max()
    others = frame.filter(pl.col("algorithm") != "insertion_sort", regime="adaptive", against="softmax")
    lowest = others["low"].to_numpy().max()
    yield from predicted(
        [
            (
                "Tuned under the adaptive temperature they sort 5 to 20 points better",
                verdict(gain["low"] > 0 and 5 < gain["mean"] < 20),
                f"{gain['mean']:+.1f} ({gain['low']:.1f} to {gain['high']:.1f})",
            ),
            (
                "SSMax gains as much, within 5 points",
                verdict(equal["low"] < 0 < equal["high"] and abs(equal["mean"]) < 5),
                f"{equal['mean']:+.1f} ± {equal['high'] - equal['mean']:.1f}",
            ),
            ("A constant from 1 gains nothing, within 5", verdict(abs(plain) < 5), f"{plain:+.1f}"),
            ("One from 1.5 gains half of SSMax's", verdict(sharp > ssmax / 2), f"{sharp:.1f} of {ssmax:.1f}"),
            (
                "Swapped in, the temperature loses at least 10 points everywhere",
                verdict(lost > 10),
                f"at least {lost:.1f}",
            ),
            (
                "No other algorithm's interval lies above 2",
                verdict(lowest < 2),
                f"the highest begins at {lowest:.1f}",
            ),
        ]
    )


def smollm2_tuned() -> Iterator[Line]:
    answers = pl.read_csv(DATA / "clrs_text" / "pretrained_answers.csv", schema_overrides={"right": pl.String})
    counts = answers.with_columns(share=100 * pl.col("right").str.count_matches("1") / pl.col("right").str.len_chars())
    means = counts.group_by("stage", "regime", "seed", longer=pl.col("n") > 16).agg(pl.mean("share"))
    share = {tuple(key): value for *key, value in means.rows()}
    seeds = (0, 1)
    softmax = [share["tuned", "softmax", seed, False] for seed in seeds]
    lost = [softmax[seed] - share["swapped", "adaptive", seed, False] for seed in seeds]
    gains = {
        name: [share["tuned", name, seed, True] - share["tuned", "softmax", seed, True] for seed in seeds]
        for name in ("adaptive", "ssmax", "constant")
    }
    parts = read("clrs_text/pretrained_parts.csv").group_by("heads").agg(pl.sum("right"), pl.sum("sets"))
    right = {heads: 100 * count / sets for heads, count, sets in parts.rows()}
    rest, look = (softmax[0] - right[name] for name in ("that do not", "that look"))
    over_seeds = {name: np.mean(values) for name, values in gains.items()}
    both = {name: " and ".join(f"{value:+.1f}" for value in values) for name, values in gains.items()}
    rows = [
        (
            "Softmax sorts at least 90 % right at the lengths of training",
            verdict(min(softmax) >= 90),
            "{:.1f} and {:.1f}".format(*softmax),
        ),
        (
            "Swapped in, the temperature loses at least 10 points there",
            verdict(min(lost) >= 10),
            "{:.1f} and {:.1f}".format(*lost),
        ),
        ("Tuned with it nothing is gained, within 5", "undecided", f"{both['adaptive']} in two runs"),
        ("A constant from 1 gains nothing, within 5", "undecided", both["constant"]),
        (
            "The 250 heads that look least cost more than the other 20",
            verdict(rest > look),
            f"{rest:.0f} and {look:.0f} points",
        ),
        (
            "All three gain alike, within 5",
            verdict(np.ptp(list(over_seeds.values())) < 5),
            "{:+.1f}, {:+.1f}, {:+.1f}".format(*over_seeds.values()),
        ),
    ]
    yield from predicted(rows)


def swapped() -> Iterator[Line]:
    frame = read("trained_or_swapped/accuracy.csv", task="sort").sort("seed")
    means = frame.group_by("trained", "test", "n").agg(pl.mean("accuracy"))
    mean = {key: value for *key, value in means.rows() for key in [tuple(key)]}
    own = [mean[name, "as trained", 256] for name in ("softmax", "ssmax", "asentmax")]
    after = [mean["softmax", name, 256] for name in ("as trained", "ssmax", "asentmax", "adaptive")]
    tests = read("trained_or_swapped/tests.csv", trained="softmax")["difference"].to_numpy()
    calibrated = [mean["softmax", f"{name}, calibrated", 64] for name in ("temperature", "ssmax")]
    start = mean["softmax", "as trained", 64]
    long = [mean["softmax", name, 1024] for name in ("ssmax, calibrated", "ssmax")]
    costs = [
        mean[name, "as trained", n] - mean[name, "softmax", n]
        for name, n in (("ssmax", 1024), ("ssmax", 256), ("asentmax", 256))
    ]
    yield from predicted(
        [
            (
                "Trainings differ by more than swaps do",
                "undecided",
                f"{max(own) - min(own):.1f} and {max(after[0] - value for value in after):.1f} points, three models",
            ),
            ("No swap gains 2 points after softmax", verdict(tests.max() < 2), f"at most {tests.max():.1f}"),
            (
                "Calibration loses nothing at 64 items, and s gains at 1,024",
                verdict(min(calibrated) > start - 1, long[0] > long[1]),
                "{:.1f} and {:.1f} against {:.1f}; {:.1f} against {:.1f}".format(*calibrated, start, *long),
            ),
            (
                "Softmax in its place costs 10 points at 1,024 items",
                verdict(costs[0] > 10),
                "{:.1f}; at 256, {:.1f} and {:.1f}".format(*costs),
            ),
        ]
    )
