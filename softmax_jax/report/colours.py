"""One colour and one name for readers per normalizer, and one colour per cause of loss, in every chart.

The nine colours are the project's own. They were searched for among all with a contrast of at least 3 to white and to
the dark pages of the documentation, and of moderate chroma, so that the least distance of two of them, as seen with
normal sight and with each of the three dichromacies (Machado et al., 2009), is as large as nine colours allow. What
this leaves hard to tell apart, the names at the ends of the curves tell apart.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

BASELINE = "softmax"
"""The normalizer that others are compared with."""
BY_NORMALIZER = {
    BASELINE: "#2d96ff",
    "adaptive": "#ff5a69",
    "adaptive_refit": "#c32d78",
    "adaptive_refit_train": "#d269d2",
    "ssmax": "#2da51e",
    "softpick": "#876900",
    "hardmax": "#879696",
    "entmax15": "#874bd2",
    "temperature": "#007896",
}
BY_CAUSE = {"accuracy": "#8db5a5", "dispersion": "#e08a3c", "key": "#5d6fae", "both": "#a04632", "value": "#9a9a9a"}
"""What becomes of a set: it is answered right, or lost to dispersion, to the key, to both at once, or to the value."""
GREY = "#8a8a8a"
"""For references: to be seen on white and on black."""
SIZES = ("#4fc27f", "#2a9d8f", "#2b7fa3", "#4a63ad")
"""From small to large: the middle of viridis, which white and dark pages both show."""
PUBLISHED = ", published"
"""How the name of a published row ends."""
NAMES = {
    "adaptive": "adaptive temperature",
    "adaptive_refit": "adaptive, refit to all lengths",
    "adaptive_refit_train": "adaptive, refit to training lengths",
    "adaptive_entmax15": "adaptive 1.5-entmax",
    "asentmax": "ASEntmax",
    "as_stieltjes": "AS-Stieltjes",
    "clipped_ssmax": "clipped SSMax",
    "entmax15": "1.5-entmax",
    "scalable_softpick": "scalable Softpick",
    "signed_l1": "signed L1",
    "softpick": "Softpick",
    "ssmax": "SSMax",
    "stieltjes": "Stieltjes",
    "top_k": "top-k",
}
"""What readers call a normalizer, where that is not its name with spaces."""


def normalizer_of(name: str) -> str:
    """The normalizer that a row is about, whatever its numbers and wherever it comes from.

    >>> [normalizer_of(name) for name in ("ssmax(s=0.43)", "softpick, as trained", "softmax, published")]
    ['ssmax', 'softpick', 'softmax']
    """
    return re.split(r"[(,]", name)[0]


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: that of its normalizer, and for all others those left over, in turn.

    A published row has the colour of its normalizer. Of several rows of one normalizer the first has its colour. That
    of the baseline goes to no other.

    >>> palette(["mine", "softmax", "softmax, published"])
    {'mine': '#ff5a69', 'softmax': '#2d96ff', 'softmax, published': '#2d96ff'}
    """
    names = list(dict.fromkeys(names))
    owners: dict[str, str] = {}
    for name in names:
        if normalizer_of(name) in BY_NORMALIZER and not name.endswith(PUBLISHED):
            owners.setdefault(normalizer_of(name), name)
    own = {name: BY_NORMALIZER[normalizer] for normalizer, name in owners.items()}
    own |= {name: BY_NORMALIZER[normalizer_of(name)] for name in names if name.endswith(PUBLISHED)}
    free = [colour for name, colour in BY_NORMALIZER.items() if name != BASELINE]
    left = [colour for colour in free if colour not in own.values()] or free
    others = [name for name in names if name not in own]
    own |= {name: left[index % len(left)] for index, name in enumerate(others)}
    return {name: own[name] for name in names}


def by_size(names: Sequence[str]) -> dict[str, str]:
    """A colour for each of these sizes, from the smallest to the largest, along one sequence.

    >>> list(by_size(["16", "256", "4096"]))
    ['16', '256', '4096']
    """
    anchors = np.array([[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in SIZES])
    places = np.linspace(0, len(SIZES) - 1, len(names))
    mixed = np.stack([np.interp(places, range(len(SIZES)), channel) for channel in anchors.T], -1).round().astype(int)
    return {name: "#{:02x}{:02x}{:02x}".format(*parts) for name, parts in zip(names, mixed)}


def reader_name(name: str) -> str:
    """What readers call a row.

    >>> [reader_name(name) for name in ("ssmax(s=0.43)", "adaptive, published", "length_scaled")]
    ['SSMax (s=0.43)', 'adaptive temperature, published', 'length scaled']
    """
    normalizer = normalizer_of(name)
    rest = name[len(normalizer) :]
    return NAMES.get(normalizer, normalizer.replace("_", " ")) + (f" {rest}" if rest.startswith("(") else rest)
