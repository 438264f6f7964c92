"""What is known about each registered method: the rows of the table that `python -m softmax_jax.normalizers` prints."""

import dataclasses

from softmax_jax.normalizers.registry import METHODS


@dataclasses.dataclass(frozen=True)
class Facts:
    """One row of the table; tests measure its sums, zeros, signs and largest weight."""

    formula: str
    sums_to_one: bool
    """Of rows with a visible logit above -inf."""
    exact_zeros: bool
    """Whether a finite logit among others may get a weight of exactly 0, beyond what float32 rounds to it."""
    signed: bool
    """Whether a weight may be negative."""
    largest_weight: str
    """As n → ∞, of one logit δ > 0 above n - 1 equal ones: it disperses if this goes to 0."""
    fused: str
    """How it rides a fused softmax attention kernel."""
    source: str


QUERY_FACTOR = "yes: β multiplies the query"
TWO_CALLS = "yes: in two calls, the first for the entropy"
AFTERWARDS = "yes: the output times 1 / (1 + exp(sink - lse))"
NO = "no"
SSMAX = "→ 1 if s·δ > 1, else Θ(n^(s·δ-1))"
LINEAR, SQUARED = "→ min(δ, 1)", "→ min(δ/2, 1)²"
DISPERSES = "Θ(1/n)"

FACTS: dict[str, Facts] = {
    "softmax": Facts("eᶻ / Σeᶻ", True, False, False, DISPERSES, "yes", "Bridle 1990"),
    "temperature": Facts("softmax(z/θ)", True, False, False, DISPERSES, QUERY_FACTOR, "folklore"),
    "adaptive": Facts(
        "softmax(β(H)·z), β a polynomial of the entropy H",
        *(True, False, False, DISPERSES, TWO_CALLS, "Veličković et al., arXiv 2410.01104"),
    ),
    "ssmax": Facts("softmax((s·log n + b)·z)", True, False, False, SSMAX, QUERY_FACTOR, "Nakanishi, arXiv 2501.19399"),
    "clipped_ssmax": Facts(
        "softmax(clip(s·log n + b, low, high)·z)", True, False, False, DISPERSES, QUERY_FACTOR, "ssmax, bounded"
    ),
    "softpick": Facts(
        "relu(eᶻ - 1) / (Σ|eᶻ - 1| + ε)", False, True, False, DISPERSES, NO, "Zuhri et al., arXiv 2504.20966"
    ),
    "scalable_softpick": Facts(
        "softpick((s·log n + b)·z)", False, True, False, SSMAX, NO, "Zuhri et al., arXiv 2504.20966"
    ),
    "length_scaled": Facts(
        "softmax(½ log((1-ε)(n-m)/(ε·m))·z)",
        *(True, False, False, "→ 1 if δ > 2, else Θ(n^(δ/2-1))", QUERY_FACTOR, "a note of 2017"),
    ),
    "softmax1": Facts("eᶻ / (1 + Σeᶻ)", False, False, False, DISPERSES, AFTERWARDS, "Miller 2023"),
    "sink_softmax": Facts(
        "eᶻ / (e^sink + Σeᶻ)", False, False, False, DISPERSES, AFTERWARDS, "Xiao et al., arXiv 2309.17453"
    ),
    "hardmax": Facts("one-hot of the largest logit", True, True, False, "= 1", NO, "folklore"),
    "shifted_softmax": Facts(
        "softmax(z - s·log n), which is softmax(z)", True, False, False, DISPERSES, "yes", "published as SSMax"
    ),
    "signed_l1": Facts("z / (1 + Σ|z|)", False, True, True, DISPERSES, NO, "published as Softpick"),
    "sparsemax": Facts("max(z - τ, 0)", True, True, False, LINEAR, NO, "Martins & Astudillo, ICML 2016"),
    "entmax15": Facts("max(z/2 - τ, 0)²", True, True, False, SQUARED, NO, "Peters et al., ACL 2019"),
    "entmax": Facts(
        "max((α-1)·z - τ, 0)^(1/(α-1))",
        *(True, True, False, "→ min((α-1)·δ, 1)^(1/(α-1))", NO, "Peters et al., ACL 2019"),
    ),
    "asentmax": Facts(
        "entmax15((δ + softplus(w)·(log n)^γ)·z)", True, True, False, "→ 1", NO, "Vasylenko et al., arXiv 2506.16640"
    ),
    "adaptive_entmax15": Facts(
        "entmax15(β(H)·z), β a polynomial of the entropy H of softmax", True, True, False, SQUARED, NO, "this project"
    ),
    "top_k": Facts("softmax over the k largest", True, True, False, "≥ 1/k if none tie, else Θ(1/n)", NO, "folklore"),
    "stieltjes": Facts("(λ - z)^(-q)", True, False, False, DISPERSES, NO, "AS-Stieltjes without its scale"),
    "as_stieltjes": Facts(
        "stieltjes((δ + softplus(w)·(log n)^γ)·z)", True, False, False, DISPERSES, NO, "AS-Stieltjes"
    ),
}

COLUMNS = (
    "name",
    "weights",
    "sums to 1",
    "exact zeros",
    "sign",
    "largest weight as n → ∞",
    "numbers",
    "fused kernel",
    "source",
)


def table() -> list[tuple[str, ...]]:
    """The cells of every registered method, in the order of `COLUMNS`; what nobody wrote down is a dash."""
    rows = []
    for name, method in METHODS.items():
        numbers = ", ".join(method.numbers) or "none"
        facts = FACTS.get(name)
        if facts is None:
            rows.append((name, *("–",) * 5, numbers, "–", "–"))
            continue
        yes_or_no = ("yes" if fact else "no" for fact in (facts.sums_to_one, facts.exact_zeros))
        sign = "±" if facts.signed else "+"
        rows.append((name, facts.formula, *yes_or_no, sign, facts.largest_weight, numbers, facts.fused, facts.source))
    return rows
