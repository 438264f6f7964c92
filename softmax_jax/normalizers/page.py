"""The page docs/normalizers.md: the table of all registered methods, then an entry for each."""

from typing import NamedTuple

from softmax_jax.normalizers.facts import COLUMNS, FACTS, table
from softmax_jax.normalizers.registry import METHODS

PICTURES = "images/normalizers"
"""Where the pictures of the entries lie, seen from the page."""


class Entry(NamedTuple):
    """What the page says of a method besides its facts."""

    formula: str
    """In LaTeX."""
    use: str
    """When to use it."""


BETA_OF_ENTROPY = (
    r"\qquad \beta(H) = \begin{cases} \max(\operatorname{poly}(H), 1) & H > 0.5 \\ 1 & H \le 0.5 \end{cases}"
)
GROWING = r"\qquad \beta = \delta + \operatorname{softplus}(\mathrm{weight}) \, (\log n)^{2 \tanh(\mathrm{power})}"

ENTRIES: dict[str, Entry] = {
    "softmax": Entry(
        r"w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}",
        "The default, and the measure of all others. It serves well where rows at test time are no longer than those "
        "of training, and where an average over many entries is wanted. It cannot keep a sharp choice as rows grow: "
        "with bounded logits every weight falls as 1/n.",
    ),
    "temperature": Entry(
        r"w = \operatorname{softmax}(z / \theta)",
        "When one number may be tuned for a length that is known beforehand. The best θ for each length is the mark "
        "that adaptive methods are measured against. It delays dispersion and does not end it.",
    ),
    "adaptive": Entry(
        r"w = \operatorname{softmax}(\beta(H)\, z)," + BETA_OF_ENTROPY,
        "For a trained model whose parameters stay as they are, on rows longer than those of training. "
        "[Refit](refit.md) the polynomial to your model first: the published one was fitted to another, and is above 1 "
        "for 0.849 < H < 5.945 nats alone. On flatter rows it is softmax again.",
    ),
    "ssmax": Entry(
        r"w = \operatorname{softmax}((s \log n + b)\, z)",
        "In a model that is to meet longer rows than it was trained on, with s learned for each head. A lead of δ over "
        "all others holds at any length if s·δ > 1. It costs one factor on the query.",
    ),
    "clipped_ssmax": Entry(
        r"w = \operatorname{softmax}(\operatorname{clip}(s \log n + b,\, \mathrm{low},\, \mathrm{high})\, z)",
        "As `ssmax`, where β must stay within bounds that training has seen. Beyond the upper bound it disperses as "
        "softmax does at that β.",
    ),
    "softpick": Entry(
        r"w_i = \frac{\max(e^{z_i} - 1, 0)}{\sum_j |e^{z_j} - 1| + \varepsilon}",
        "When a head should be able to attend to nothing, and when logits of 0 or less should get a weight of exactly "
        "0. It has to be trained in: where all logits are large and positive, as in a model trained under softmax they "
        "may be, it is softmax.",
    ),
    "scalable_softpick": Entry(
        r"w = \operatorname{softpick}((s \log n + b)\, z)",
        "As `softpick`, on rows longer than those of training: the scale of `ssmax` keeps the lead that the map alone "
        "would lose.",
    ),
    "length_scaled": Entry(
        r"w = \operatorname{softmax}(\beta z), \qquad "
        r"\beta = \tfrac{1}{2} \log \frac{(1 - \varepsilon)(n - m)}{\varepsilon m}",
        "When about m entries of a row matter, and their logits are near +1 and those of the others near −1. It has "
        "nothing to learn: m and the mass ε that may go elsewhere are said beforehand.",
    ),
    "softmax1": Entry(
        r"w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}",
        "When a head may find nothing worth its attention: where all logits are far below 0, so is the sum of the "
        "weights. Where the logits are large it is softmax.",
    ),
    "sink_softmax": Entry(
        r"w_i = \frac{e^{z_i}}{e^{\mathrm{sink}} + \sum_j e^{z_j}}",
        "As `softmax1`, with the height of the sink learned for each head.",
    ),
    "hardmax": Entry(
        r"w_i = \begin{cases} 1 & z_i = \max_j z_j \\ 0 & \text{otherwise} \end{cases}",
        "To measure with. It is the limit of θ → 0, so what it gets wrong is not dispersion but the wrong entry on "
        "top. Its gradient is 0, so nothing trains through it.",
    ),
    "shifted_softmax": Entry(
        r"w = \operatorname{softmax}(z - s \log n) = \operatorname{softmax}(z)",
        "To see that a shift changes nothing. The formula has circulated as SSMax, which multiplies instead.",
    ),
    "signed_l1": Entry(
        r"w_i = \frac{z_i}{1 + \sum_j |z_j|}",
        "To compare with. The formula has circulated as Softpick; without an exponential, nothing stands out of a long "
        "row.",
    ),
    "sparsemax": Entry(
        r"w_i = \max(z_i - \tau, 0), \qquad \sum_j w_j = 1",
        "When few entries matter and all others should get exactly 0. One logit that leads by 1 or more takes the "
        "whole row, however long.",
    ),
    "entmax15": Entry(
        r"w_i = \max(z_i / 2 - \tau, 0)^2, \qquad \sum_j w_j = 1",
        "When zeros are wanted and sparsemax is too blunt: weights leave 0 smoothly, and a lead of 2 takes the whole "
        "row.",
    ),
    "entmax": Entry(
        r"w_i = \max((\alpha - 1) z_i - \tau, 0)^{1 / (\alpha - 1)}, \qquad \sum_j w_j = 1",
        "When how sparse a head is should be learned: α goes from softmax at 1 over sparsemax at 2 towards hardmax, "
        "one for each head if wanted. For a fixed 1.5 or 2 the two maps above are faster.",
    ),
    "asentmax": Entry(
        r"w = \operatorname{entmax15}(\beta z)," + GROWING,
        "In a model that is to meet much longer rows: exact zeros, and a scale that grows with the row. All three "
        "numbers may be learned for each head.",
    ),
    "adaptive_entmax15": Entry(
        r"w = \operatorname{entmax15}(\beta(H)\, z)," + BETA_OF_ENTROPY,
        "As `adaptive`, for a trained model that may have zeros among its weights. H is the entropy of softmax, so a "
        "fit made for `adaptive` can be read, but was not made for this map.",
    ),
    "top_k": Entry(
        r"w_i = \frac{[z_i \ge z_{(k)}]\, e^{z_i}}{\sum_j [z_j \ge z_{(k)}]\, e^{z_j}}",
        "When at most k entries matter. The others cannot dilute the sum, so the weights stay what they are as the row "
        "grows with entries below the k largest.",
    ),
    "stieltjes": Entry(
        r"w_i = (\lambda - z_i)^{-q}, \qquad \sum_j w_j = 1",
        "When no entry should ever be lost to sight: a weight falls as a power of its distance to the top, where "
        "softmax has an exponential. Without a scale the long tail disperses.",
    ),
    "as_stieltjes": Entry(
        r"w = \operatorname{stieltjes}(\beta z)," + GROWING,
        "As `asentmax`, without zeros: the scale holds the tail together as the row grows.",
    ),
}


def entry(name: str) -> str:
    """Formula, picture, use and source of a method; raises KeyError for one without an entry."""
    formula, use = ENTRIES[name]
    numbers = ", ".join(f"`{number}`" for number in METHODS[name].numbers) or "none"
    return f"""## {name}

$${formula}$$

![What {name} makes of ten logits, and of one logit of 3 as the row grows]({PICTURES}/{name}.svg)

**When to use it.** {use}

**Numbers:** {numbers}. **Source:** {FACTS[name].source}.
"""


def markdown() -> str:
    """The whole page."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in (f"`{row[0]}`", *row[1:])) for row in table()]
    body = "\n".join(f"| {line} |" for line in lines)
    entries = "\n".join(entry(name) for name in METHODS if name in ENTRIES)
    return f"""# Every normalizer

Written by `python -m softmax_jax.normalizers --markdown`. `z` are the logits of a row, `n` the entries that the query
can see. The largest weight is that of one logit δ > 0 above n - 1 equal ones: where it goes to 0, attention disperses.

{body}

The pictures, drawn by `python -m softmax_jax.report.gallery`, show each method with its default numbers. On the left
are its weights for the same ten logits, which the axis names; on the right is the weight of one logit of 3 among n - 1
others between -0.5 and 0.5. The dashes are softmax, for comparison.

{entries}"""
