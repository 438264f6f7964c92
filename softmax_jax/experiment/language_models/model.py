"""A pretrained model with its tokenizer, and what reading one from any file needs."""

import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from softmax_jax.experiment.language_models.decoder import Parameters, Sizes
from softmax_jax.experiment.language_models.keys import shown
from softmax_jax.refusal import MissingPackage, Refusal

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]


@dataclasses.dataclass(frozen=True)
class Model:
    """A pretrained model with its tokenizer."""

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
