"""Maps: each turns a row of logits into weights. A map is an object, called as `jax.nn.softmax` is.

Every map computes in float32 whatever the input type (float64 stays), returns the type it was given, and
obeys the mask as `masking` says. In the formulas `z` are the logits of one row, and every sum runs over the
visible entries alone.
"""

import abc
import dataclasses
import re
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.blocks import Attended, Block, BlockEntries, ScaledRows, Tree
from softmax_jax.normalizers.entry import DISPERSES, UNWRITTEN, Entry, Written
from softmax_jax.normalizers.masking import Axis, Mask, at_most, hide
from softmax_jax.normalizers.numbers import Numbers, number
from softmax_jax.normalizers.rows import WholeRow


class Map(Numbers, abc.ABC):
    """A row of logits in, its weights out.

    A subclass has its numbers as fields, each with a default, and defines `weights` of whole rows. What is masked
    gets 0 whatever that says. A row may also come in blocks where it defines `in_blocks`, as `Quotient` does.
    """

    shift_invariant: ClassVar[bool] = False
    """Whether adding a constant to a row leaves its weights as they are. A `Normalizer` then subtracts the row's
    maximum before it scales the logits, so that large logits neither overflow nor lose digits."""
    sums_to_one: ClassVar[bool] = True
    """Whether the weights of every row with a visible logit above -inf do."""
    exact_zeros: ClassVar[bool] = False
    """Whether a finite logit among others may get a weight of exactly 0, beyond what float32 rounds to it."""
    signed: ClassVar[bool] = False
    """Whether a weight may be negative."""
    searches: ClassVar[bool] = False
    """Whether blocks are read many times, in search of a threshold."""
    fused: ClassVar[Literal["softmax", "sink"] | None] = None
    """Which fused attention kernels give it: those of softmax as they are, or with a factor for a sink afterwards."""
    entry: ClassVar[Entry] = UNWRITTEN
    """What the documentation says of it under no scale."""

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As functions have: that of the class, in the style of a function."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def __call__(
        self, logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; `numbers` in the place of its own."""
        map = dataclasses.replace(self, **numbers) if numbers else self
        checks.row(logits, axis, **vars(map))
        return hide(map.weights(WholeRow.of(logits, axis, where)), where).astype(logits.dtype)

    @abc.abstractmethod
    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        """Weights of rows that are there as a whole; what they say of masked entries does not matter."""

    def written(self) -> Written | None:
        """The map as expressions of Vega, for a page to compute."""
        return None


Entries = WholeRow | BlockEntries
"""Some entries of each row, a block of them or all: their logits, with -inf where one is masked, and the mask."""

AnyRow = WholeRow | ScaledRows
"""Rows that are there as a whole, or that come in blocks."""


class Quotient(Map):
    """A map whose weights are a quotient: terms relative to a pivot of the row, over what they sum to.

    Stated once, for rows that are there as a whole and for rows that come in blocks.
    """

    pivot_cancels: ClassVar[bool] = True
    """Whether any pivot gives the same weights, so that it may be a constant in derivatives. In blocks it always is."""

    def start(self) -> ArrayLike:
        """The least that the pivot may be."""
        return -jnp.inf

    def height(self, entries: Entries) -> Float[Array, "*shape"]:
        """What the pivot is the largest of."""
        return entries.logits

    @abc.abstractmethod
    def terms(
        self, row: AnyRow, entries: Entries, pivot: Float[Array, "*row"]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """Of each entry: its numerator, and what the divisor sums."""

    def divisor(self, row: AnyRow, total: Float[Array, "*row"], pivot: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """What divides, from the sum."""
        return total

    def decay(self, row: AnyRow, old: Float[Array, "*row"], new: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """The factor by which the terms change when the pivot does."""
        return jnp.exp(row.below(old, new))

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        pivot = row.pivot(self.height(row), self.start())
        pivot = jax.lax.stop_gradient(pivot) if self.pivot_cancels else pivot
        numerators, terms = self.terms(row, row, pivot)
        return numerators / _or_one(self.divisor(row, row.sum(terms), pivot))

    def in_blocks(self, rows: ScaledRows) -> Attended:
        """What the weights of rows in blocks weigh, in one pass, and the weights of any block."""

        def sums(block: Block, pivot: Array) -> Tree:
            numerators, terms = self.terms(rows, rows.entries(block), pivot)
            return block.attend(numerators), terms.sum(-1, keepdims=True)

        def move(sums: Tree, old: Array, new: Array) -> Tree:
            decay = self.decay(rows, old, new)
            return jax.tree.map(lambda leaf: leaf * decay, sums)

        pivot, (attended, total) = rows.blocks.online(
            lambda block: self.height(rows.entries(block)), self.start(), sums, move
        )
        divisor = _or_one(self.divisor(rows, total, pivot))
        attended = jax.tree.map(lambda leaf: leaf / divisor, attended)
        return Attended(attended, lambda block: self.terms(rows, rows.entries(block), pivot)[0] / divisor)


def _or_one(divisor: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """The divisor; 1 where it is 0, which is the case of an empty row alone."""
    return jnp.where(divisor == 0, jnp.ones((), divisor.dtype), divisor)


# What a page computes of each item: y = β·z, c = y less the largest of the row, m = max(0, the largest y).
EXPONENTIAL, LIFTED = "exp(datum.c)", "exp(datum.y - datum.m)"


class Softmax(Quotient):
    r"""Softmax over the visible entries.

    $$w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$

    Equal to `jax.nn.softmax(logits, axis, where=where)`, but for half-precision input, which is computed in
    float32 here, and for rows whose logits are all -inf, which get zeros.

    >>> softmax(jnp.array([1.0, 1.0, 7.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    fused = "softmax"
    entry = Entry(
        "eᶻ / Σeᶻ",
        r"w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}",
        DISPERSES,
        "Bridle 1990",
        "The default, and the measure of all others. It serves well where rows at test time are no longer than those "
        "of training, and where an average over many entries is wanted. It cannot keep a sharp choice as rows grow: "
        "with bounded logits every weight falls as 1/n.",
    )

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        exponentials = jnp.where(entries.logits != -jnp.inf, jnp.exp(row.below(entries.logits, pivot)), 0)
        return exponentials, exponentials

    def written(self) -> Written:
        return Written(EXPONENTIAL, EXPONENTIAL)


class Softmax1(Softmax):
    r"""Softmax with a one in the denominator, so that a row may attend to nothing.

    $$w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}$$

    The weights sum to less than 1. Adding a constant to the row changes them.

    Source: Miller, "Attention is off by one" (2023).

    >>> softmax1(jnp.array([0.0, 0.0]))
    Array([0.33333334, 0.33333334], dtype=float32)
    """

    shift_invariant = False
    sums_to_one = False
    fused = "sink"
    entry = Entry(
        "eᶻ / (1 + Σeᶻ)",
        r"w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}",
        DISPERSES,
        "Miller 2023",
        "When a head may find nothing worth its attention: where all logits are far below 0, so is the sum of the "
        "weights. Where the logits are large it is softmax.",
    )

    def sink_logit(self) -> ArrayLike:
        """The logit in the denominator alone."""
        return 0.0

    def start(self) -> ArrayLike:
        return self.sink_logit()

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + jnp.exp(row.number(self.sink_logit()) - pivot)

    def written(self) -> Written:
        return Written(LIFTED, LIFTED, f"exp({self.sink_logit()} - datum.m)")


class SinkSoftmax(Softmax1):
    r"""Softmax with a sink: one more logit, in the denominator alone, that takes weight from the row.

    $$w_i = \frac{e^{z_i}}{e^{\text{sink}} + \sum_j e^{z_j}}$$

    Usually learned, one per head, of shape (heads, 1, 1). At 0 this is `softmax1`; the lower the sink, the
    closer to `softmax`. The weights sum to less than 1. Adding a constant to the row changes them, and a
    scale multiplies the logits, not the sink.

    Raises ValueError for a sink that is not finite.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, for the
    sink; OpenAI, "gpt-oss model card", arXiv 2508.10925, for the learned logit per head.

    >>> sink_softmax(jnp.log(jnp.array([1.0, 2.0])), sink=jnp.log(5.0)).round(3)
    Array([0.125, 0.25 ], dtype=float32)
    """

    entry = Entry(
        "eᶻ / (e^sink + Σeᶻ)",
        r"w_i = \frac{e^{z_i}}{e^{\mathrm{sink}} + \sum_j e^{z_j}}",
        DISPERSES,
        "Xiao et al., arXiv 2309.17453",
        "As `softmax1`, with the height of the sink learned for each head.",
    )

    sink: ArrayLike = number(default=0.0, learn=True)

    def sink_logit(self) -> ArrayLike:
        return self.sink


class Softpick(Quotient):
    r"""Rectified softmax: entries with a logit below 0 get exactly 0, yet still count in the denominator.

    $$w_i = \frac{\max(e^{z_i - m} - e^{-m}, 0)}{\sum_j |e^{z_j - m} - e^{-m}| + \varepsilon},
      \qquad m = \max(0, \max_j z_j)$$

    `eps`, at least 1e-37, keeps a row of zeros finite. The weights sum to at most 1. Adding a constant to the row
    changes them.

    Source: Zuhri, Fuadi, Aji, "Softpick", arXiv 2504.20966.

    >>> softpick(jnp.array([jnp.log(2.0), jnp.log(4.0), -1e9])).round(3)
    Array([0.2, 0.6, 0. ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    pivot_cancels = False  # but for ε, which is added after all terms are divided by exp(m)
    entry = Entry(
        "relu(eᶻ - 1) / (Σ|eᶻ - 1| + ε)",
        r"w_i = \frac{\max(e^{z_i} - 1, 0)}{\sum_j |e^{z_j} - 1| + \varepsilon}",
        DISPERSES,
        "Zuhri et al., arXiv 2504.20966",
        "When a head should be able to attend to nothing, and when logits of 0 or less should get a weight of exactly "
        "0. It has to be trained in: where all logits are large and positive, as in a model trained under softmax they "
        "may be, it is softmax.",
    )

    # No less is a normal number in float32.
    eps: ArrayLike = number(
        default=1e-6, rule="above 0, at least 1e-37, such as 1e-06", holds=lambda value: value >= 1e-37
    )

    def start(self) -> ArrayLike:
        return 0.0

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        difference = hide(less_one(entries.logits, pivot), entries.where)
        return jnp.where(difference > 0, difference, 0), jnp.abs(difference)

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + row.number(self.eps)

    def written(self) -> Written:
        picked = f"{LIFTED} - exp(-datum.m)"
        return Written(f"max({picked}, 0)", f"abs({picked})", str(self.eps))


def less_one(z: Float[Array, "*shape"], maximum: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """exp(z) - 1, both times exp(-maximum)."""
    # Two forms of the same difference: for small logits the right one alone cancels all its digits.
    small = z < 1
    return jnp.where(
        small,
        jnp.exp(-maximum) * jnp.expm1(jnp.where(small, z, 0)),
        jnp.exp(z - maximum) - jnp.exp(-maximum),
    )


class Hardmax(Quotient):
    r"""One-hot of the largest logit: the limit of softmax(z / θ) as θ → 0, and so the bound of every temperature.

    Entries that tie for the maximum share the weight equally, as they do in that limit. The gradient is 0.

    >>> hardmax(jnp.array([1.0, 3.0, 3.0, 2.0]))
    Array([0. , 0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    exact_zeros = True
    entry = Entry(
        "one-hot of the largest logit",
        r"w_i = \begin{cases} 1 & z_i = \max_j z_j \\ 0 & \text{otherwise} \end{cases}",
        "= 1",
        "folklore",
        "To measure with. It is the limit of θ → 0, so what it gets wrong is not dispersion but the wrong entry on "
        "top. Its gradient is 0, so nothing trains through it.",
    )

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        largest = jnp.where(entries.logits != -jnp.inf, self.decay(row, entries.logits, pivot), 0)
        return largest, largest

    def decay(self, row: AnyRow, old: Array, new: Array) -> Array:
        # The sign is 0 at the largest and -1 below. Of NaN it is NaN, which a comparison would not hand on.
        return 1 + jnp.sign(row.below(old, new))

    def written(self) -> Written:
        return Written("datum.c == 0 ? 1 : 0", "datum.c == 0 ? 1 : 0")


class ShiftedSoftmax(Softmax):
    r"""Softmax of shifted logits, sometimes published under the name of SSMax: it is plain softmax.

    $$w = \operatorname{softmax}(z - s \log n) = \operatorname{softmax}(z)$$

    `n` is the number of visible entries. A shift is the same for the whole row, so it cancels before anything is
    computed, and the gradient in `s` is 0. Kept to show just that; the real SSMax is `ssmax`, which multiplies.

    >>> z = jnp.array([1.0, 2.0, 3.0])
    >>> bool(jnp.allclose(shifted_softmax(z, s=5.0), softmax(z - 5.0 * jnp.log(3.0))))
    True
    """

    entry = Entry(
        "softmax(z - s·log n), which is softmax(z)",
        r"w = \operatorname{softmax}(z - s \log n) = \operatorname{softmax}(z)",
        DISPERSES,
        "published as SSMax",
        "To see that a shift changes nothing. The formula has circulated as SSMax, which multiplies instead.",
    )

    s: ArrayLike = number(default=1.0)


class SignedL1(Quotient):
    r"""Logits over one plus their absolute sum, sometimes published under the name of Softpick.

    $$w_i = \frac{z_i}{1 + \sum_j |z_j|}$$

    Weights carry the sign of their logit and their absolute values sum to less than 1. There is no
    exponential, so nothing is picked; the real Softpick is `softpick`. A logit of -inf counts as masked.

    >>> signed_l1(jnp.array([1.0, -2.0]))
    Array([ 0.25, -0.5 ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    signed = True
    entry = Entry(
        "z / (1 + Σ|z|)",
        r"w_i = \frac{z_i}{1 + \sum_j |z_j|}",
        DISPERSES,
        "published as Softpick",
        "To compare with. The formula has circulated as Softpick; without an exponential, nothing stands out of a long "
        "row.",
    )

    # Dividing through by the largest keeps the sum finite; by at most 1e37, whose reciprocal is not subnormal.
    def start(self) -> ArrayLike:
        return 1.0

    def height(self, entries: Entries) -> Array:
        sizes = jnp.abs(_finite_below(entries.logits))
        return jnp.where(sizes == jnp.inf, sizes, at_most(sizes, 1e37))

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        ratio = _finite_below(entries.logits) / pivot
        return ratio, jnp.abs(ratio)

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + 1 / pivot

    def decay(self, row: AnyRow, old: Array, new: Array) -> Array:
        return old / new

    def written(self) -> Written:
        return Written("datum.y", "abs(datum.y)", "1")


def _finite_below(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logits with 0 for -inf."""
    return jnp.where(logits == -jnp.inf, 0, logits)


softmax = Softmax()
softmax1 = Softmax1()
sink_softmax = SinkSoftmax()
softpick = Softpick()
hardmax = Hardmax()
shifted_softmax = ShiftedSoftmax()
signed_l1 = SignedL1()
