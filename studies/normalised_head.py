"""Max retrieval by a head whose queries and keys have length 1, so that its logits are cosines times one number."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import MaxRetrievalModel
from softmax_jax.experiment.tasks.task import option
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer as normalizer_named


class NormalisedHead(MaxRetrievalModel):
    r"""The model of max retrieval with normalised queries and keys of `size` numbers (QK-norm).

    $$z_i = g\, \frac{q^\top k_i}{\lVert q \rVert \lVert k_i \rVert}$$

    The number g is learned, and starts at √size, as products of independent numbers of variance 1 would have it.
    """

    def __init__(
        self, size: int, width: int, normalizer: Normalizer, precisions: Sequence[str], *, rngs: nnx.Rngs
    ) -> None:
        super().__init__(width, normalizer, precisions, rngs=rngs)
        self.attention_query = rounded_products.layer(precisions[1], width, size, rngs=rngs)
        self.attention_key = rounded_products.layer(precisions[1], width, size, rngs=rngs)
        self.gain = nnx.Param(jnp.float32(size**0.5))

    def logits(
        self, hidden: Float[Array, "sets items width"], query: Float[Array, "sets 1"]
    ) -> Float[Array, "sets items"]:
        """Returns the attention logits of hidden items."""
        q = _direction(self.attention_query(nnx.gelu(self.query_out(nnx.gelu(self.query_in(query))))))
        keys = _direction(self.attention_key(hidden))
        return self.gain[...] * self.over_items("snd,sd->sn", keys, q)


def _direction(vectors: Float[Array, "*vectors size"]) -> Float[Array, "*vectors size"]:
    """Returns vectors of length 1, and of less where they were shorter than 1e-6."""
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)


@dataclasses.dataclass(frozen=True)
class NormalisedKeys(MaxRetrieval):
    """Max retrieval by a `NormalisedHead`."""

    name: ClassVar[str] = "normalised_keys"

    size: int = 16
    """Numbers of a query and of a key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(option("size"), self.size, 2, NormalisedKeys.size, 2**14)

    def build(self, normalizer: str, rngs: nnx.Rngs) -> Any:
        """Returns the model; its parameters do not depend on the normalizer."""
        precisions = rounded_products.precisions(self.matmul, self.rounded)
        return NormalisedHead(self.size, self.width, normalizer_named(normalizer), precisions, rngs=rngs)
