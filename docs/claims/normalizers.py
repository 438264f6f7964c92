"""Claims of the page on normalizers, and choices on that of guarantees."""

from collections.abc import Iterator

import numpy as np

from softmax_jax.normalizers.scales import EntropyPolynomial

SETTINGS = {"docs/guarantees.md": ("an added mask over logits beyond ±1,000 may show",)}


def where_the_published_beta_sharpens() -> Iterator[tuple[str, str]]:
    """The entropies between which the published polynomial exceeds 1."""
    above = np.poly1d(np.array(EntropyPolynomial().coefficients, float)) - 1
    low, high = sorted(root.real for root in above.roots if abs(root.imag) < 1e-9 and root.real > 0.5)
    yield "docs/normalizers.md", f"the published β exceeds 1 only for {low:.3f} < H < {high:.3f} nats"
