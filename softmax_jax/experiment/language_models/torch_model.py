"""Loads a causal model of transformers, of any architecture, through PyTorch, and measures it as a JAX function.

The files are read by transformers. No code of the directory is run, and nothing is downloaded.
"""

import dataclasses
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.experiment.language_models.directory import check_files, file_tokenizer
from softmax_jax.experiment.language_models.keys import Keys, read_object, shown
from softmax_jax.experiment.language_models.known_keys import REFUSED
from softmax_jax.experiment.language_models.measures import ROW_MEASURES, mean_measures
from softmax_jax.experiment.language_models.model import Model
from softmax_jax.files import read_text
from softmax_jax.refusal import Refusal, require
from softmax_jax.transforms.from_torch import FITTING, INSTALL
from softmax_jax.transforms.sites import Site
from softmax_jax.transforms.unread import UNREADABLE

LONGEST = 2**20
"""The context of a model that has no table of positions."""


@dataclasses.dataclass(frozen=True)
class TorchModel(Model):
    """A pretrained model of PyTorch with its tokenizer, as a JAX function; of its sizes only the first three count."""

    apply: Callable[..., dict[str, Any]]
    """Returns the logits (batch, length, tokens), and the values of each layer's cache (batch, heads, length, size)."""
    configuration: str
    """The text of config.json, as the sizes do not say all of it."""

    def logits_under(self, normalizer: str | None) -> Callable[..., Float[Array, "1 length tokens"]]:
        """Returns the compiled function of its logits under a normalizer; None for its own softmax."""
        apply = sj.swap(self.apply, normalizer, where=is_of_heads) if normalizer else self.apply
        return jax.jit(lambda weights, tokens: apply(weights, tokens)["logits"])

    def losses(
        self, tokens: Int[np.ndarray, "passages length"], normalizer: str | None
    ) -> Float[Array, "passages following"]:
        logits_of = self.logits_under(normalizer)

        def passage_loss(tokens: Int[Array, " length"]) -> Float[Array, " following"]:
            logits = logits_of(self.parameters, tokens[None])[0, :-1]
            return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, tokens[1:, None], -1)[:, 0]

        with jax.default_matmul_precision("highest"):
            return jnp.stack([passage_loss(jnp.asarray(passage)) for passage in tokens])

    def head_measures(
        self, tokens: Int[np.ndarray, "passages length"], edges: tuple[int, ...]
    ) -> dict[str, Float[Array, "passages layers heads bins"]]:
        @jax.jit
        def measure_passage(weights: dict[str, Array], tokens: Int[Array, " length"]) -> dict[str, Array]:
            output, sites = sj.probe(self.apply, where=is_of_heads)(weights, tokens[None])
            rows = {name: jnp.stack([getattr(site, name)[0] for site in sites]) for name in ROW_MEASURES}
            return mean_measures(rows, jnp.concatenate(output["values"]), edges)

        with jax.default_matmul_precision("highest"):
            measured = [measure_passage(self.parameters, jnp.asarray(passage)) for passage in tokens]
        return {name: jnp.stack([each[name] for each in measured]) for name in measured[0]}

    @property
    def identity(self) -> tuple[Any, ...]:
        return (*super().identity, self.configuration, *(version(name) for name in FITTING))

    def check_learnable(self) -> None:
        raise Refusal(
            f"--calibrate is for Llama, Mistral and Qwen2, and {self.name} runs in PyTorch: learn numbers with "
            "softmax_jax.calibrate, and write them with softmax_jax.experiment.language_models.baking.bake"
        )


def load_torch(path: Path) -> TorchModel:
    """Loads a directory. Raises Refusal for files that are missing or damaged, and for code that comes with them."""
    check_files(path)
    config = Keys(path / "config.json", read_object(path / "config.json"))
    for key, reason in REFUSED.items():
        if config.get(key) is not None:
            config.refuse(key, reason)
    (name,) = config.values["architectures"]
    require(f"the architecture {shown(name)}", "torch", "torchax", "transformers", install=INSTALL)
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers.models.auto import modeling_auto  # pyright: ignore[reportMissingImports]

    if name not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise Refusal(
            f"{config.path} holds the architecture {shown(name)}, which is no causal language model of transformers "
            f"{transformers.__version__}: choose one whose name ends in ForCausalLM or LMHeadModel"
        )
    transformers.utils.logging.disable_progress_bar()
    model = _load_whole(getattr(transformers, name), path, torch.float32)
    tokenizer = file_tokenizer(path / "tokenizer.json", model.get_input_embeddings().num_embeddings)
    weights, apply = sj.from_torch(_with_values(model))
    heads = model.config.num_attention_heads
    context = getattr(model.config, "max_position_embeddings", None) or LONGEST
    key_heads = getattr(model.config, "num_key_value_heads", None) or heads
    sizes = Sizes(heads, key_heads, context)
    return TorchModel(path.name, weights, sizes, tokenizer, apply, read_text(path / "config.json"))


def _load_whole(model_class: Any, path: Path, dtype: Any) -> Any:
    """Returns a model with all its weights. Raises Refusal where the files lack one, or hold one of another model."""
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "dtype": dtype}
    try:
        model, report = model_class.from_pretrained(path, output_loading_info=True, **options)
    except Exception as error:  # of JSON, of safetensors, of a configuration, of sizes that differ
        problem = str(error).strip().partition("\n")[0]
        raise Refusal(f"{path} cannot be loaded by transformers ({type(error).__name__}: {problem})") from error
    for rule, names in [("has no", report["missing_keys"]), ("has unknown", report["unexpected_keys"])]:
        if names:
            raise Refusal(
                f"{path} {rule} array {shown(min(names))}: its weights are not those of {model_class.__name__}"
            )
    return model.eval()


def _with_values(model: Any) -> Any:
    """Returns a module that returns a model's logits and its cache's values."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import DynamicCache  # pyright: ignore[reportMissingImports]

    class WithValues(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any) -> dict[str, Any]:
            cache: Any = DynamicCache()  # which keeps all positions, where the model's own keeps those of a window
            output = self.model(input_ids=tokens, past_key_values=cache, use_cache=True)
            return {"logits": output.logits, "values": tuple(layer.values for layer in cache.layers)}

    return WithValues().eval()


def is_of_heads(site: Site) -> bool:
    """Says whether a site is attention of (batch, heads, queries, keys), and no router of experts of the same form.

    A site that cannot be read may be attention too: a swap refuses it.
    """
    return site.use in UNREADABLE or (site.use == "attention" and len(site.shape) == 4)


def write_on(
    model: TorchModel, tokens: Int[np.ndarray, " length"], count: int, normalizer: str | None = None
) -> Int[Array, " written"]:
    """Returns the tokens that a model writes after others, each the likeliest, from the whole text at every step."""
    logits_of = model.logits_under(normalizer)
    text = jnp.zeros(len(tokens) + count, jnp.int32).at[: len(tokens)].set(tokens)  # what follows changes no token
    for place in range(len(tokens), len(text)):
        logits = logits_of(model.parameters, text[None])[0, place - 1]
        text = text.at[place].set(jnp.argmax(logits))
    return text[len(tokens) :]
