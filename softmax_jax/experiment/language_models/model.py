"""A pretrained model with its tokenizer, and what reading one from any file needs."""

import abc
import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float, Int

from softmax_jax.experiment.language_models.decoder import Parameters, Sizes, by_softmax, weigh_by
from softmax_jax.experiment.language_models.keys import shown
from softmax_jax.experiment.language_models.measures import head_measures, passage_losses
from softmax_jax.refusal import MissingPackage, Refusal
from softmax_jax.temperature import checkpoint_sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]


@dataclasses.dataclass(frozen=True)
class Model(abc.ABC):
    """A pretrained model with its tokenizer, and what is measured of it. Its name is that of its file or directory."""

    name: str
    parameters: Parameters
    sizes: Sizes
    tokenizer: "Tokenizer"

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """Returns the tokens of a text, with no start or end added."""
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: Int[np.ndarray, " tokens"]) -> str:
        """Returns the text of tokens."""
        return self.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)

    @abc.abstractmethod
    def losses(
        self, tokens: Int[np.ndarray, "passages length"], normalizer: str | None
    ) -> Float[Array, "passages following"]:
        """Returns the loss of each token after the first, under a normalizer; without one under the model's softmax."""

    @abc.abstractmethod
    def head_measures(
        self, tokens: Int[np.ndarray, "passages length"], edges: tuple[int, ...]
    ) -> dict[str, Float[Array, "passages layers heads bins"]]:
        """Returns `HEAD_MEASURES` of every head under its own softmax, as means over the rows of each bin."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that its measures depend on besides the tokens: by it they are kept."""
        return checkpoint_sha256(self.parameters), self.sizes

    @abc.abstractmethod
    def check_learnable(self) -> None:
        """Raises Refusal for a model whose temperatures `learn_temperatures` cannot learn."""


@dataclasses.dataclass(frozen=True)
class DecoderModel(Model):
    """A llama-like model, computed by `decoder`."""

    def losses(
        self, tokens: Int[np.ndarray, "passages length"], normalizer: str | None
    ) -> Float[Array, "passages following"]:
        weigh = weigh_by(normalizer) if normalizer else by_softmax
        return passage_losses(self.parameters, tokens, None, self.sizes, weigh)

    def head_measures(
        self, tokens: Int[np.ndarray, "passages length"], edges: tuple[int, ...]
    ) -> dict[str, Float[Array, "passages layers heads bins"]]:
        return head_measures(self.parameters, tokens, self.sizes, edges)

    def check_learnable(self) -> None:
        """Refuses none: the decoder takes a temperature for each head."""


def require(package: str) -> Any:
    """Imports a package that the project does not require."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingPackage("this model", error.name, package.partition(".")[0]) from None


def checked_tokenizer(tokenizer: "Tokenizer", path: Path, rows: int) -> "Tokenizer":
    """Returns the tokenizer without truncation and padding. Raises Refusal for a token beyond the embedding's rows."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise Refusal(f"{path} has no tokens: it is damaged; download it again")
    token = max(vocabulary, key=lambda token: vocabulary[token])
    if vocabulary[token] >= rows:
        raise Refusal(
            f"{path}: the token {shown(token)} is number {vocabulary[token]}, and the embedding has {rows} rows: it is "
            "of another model; take both from one"
        )
    return tokenizer
