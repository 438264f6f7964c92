"""PyTorch models of transformers are found, swapped and probed as if edited in PyTorch."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.refusal import Refusal
from tests.models.test_models import HIDDEN, difference
from tests.models.torch_zoo import ARCHITECTURES, REFUSED, build, library

pytestmark = pytest.mark.filterwarnings("ignore")
ALWAYS = ["Llama", "Gemma 3", "gpt-oss", "Bloom", "BERT", "T5", "wav2vec 2.0"]
"""One of each kind; the others are rare."""
S = 0.43
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
Record = Callable[[str, Any], None]


@contextlib.contextmanager
def ssmax_in_torch() -> Iterator[None]:
    """Edits every softmax of PyTorch, but those of routers, to SSMax over the entries that are not hidden."""
    torch = library("torch")
    stock = torch.softmax

    def softmax(logits, dim=-1, dtype=None, **_):
        if logits.ndim < 4:
            return stock(logits, dim, dtype=dtype)
        logits = logits.to(dtype or logits.dtype)
        visible = logits > HIDDEN
        count = visible.sum(dim, keepdim=True)
        scaled = torch.where(visible, S * torch.log(count.to(logits.dtype)) * logits, -torch.inf)
        return torch.where(count > 0, torch.nan_to_num(stock(scaled, dim)), stock(logits, dim))

    places = (torch, torch.nn.functional, torch.Tensor)
    with contextlib.ExitStack() as patches:
        for place in places:
            patches.enter_context(mock.patch.object(place, "softmax", softmax))
        yield


def arrays(tensors: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()}


def attentions_of(output: Any) -> list[Any]:
    """Returns the weights that transformers gives, in the order in which they are computed."""
    if "vision_model_output" in output:
        return [*output.vision_model_output.attentions, *output.text_model_output.attentions]
    if "cross_attentions" in output and "encoder_attentions" in output:
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        return [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]
    return [*output.attentions]


def of_heads(site: Any) -> bool:
    """Says whether a site is attention, and no router of the same form."""
    return site.use == "attention" and len(site.shape) == 4


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.rare] * (name not in ALWAYS)) for name in ARCHITECTURES]
)
def test_a_model_of_pytorch_is_found_swapped_and_probed(name: str, record_property: Record):
    torch, architecture = library("torch"), ARCHITECTURES[name]
    model, tensors = build(architecture)
    weights, apply = sj.from_torch(model)
    inputs = arrays(tensors)
    found = sj.sites(apply)(weights, **inputs)
    assert [site.use for site in found] == [*architecture.uses]
    assert {site.mask for site in found if site.use == "attention"} == architecture.masks
    record_property("uses", ", ".join(f"{number} {use}" for use, number in Counter(architecture.uses).items()))
    record_property("masks", ", ".join(sorted(architecture.masks)))

    with torch.no_grad():
        stock = model(**tensors, output_attentions=True)
        with ssmax_in_torch():
            edited = model(**tensors)
    output, rows = QUICKLY(sj.probe(apply, also=lambda weights: weights, where=of_heads))(weights, **inputs)
    swapped = QUICKLY(sj.swap(apply, f"ssmax(s={S})", where=of_heads))(weights, **inputs)

    flat = [(got, wanted) for got, wanted in ((output, stock), (swapped, edited))]
    logits, ssmax = (max(differences(got, wanted)) for got, wanted in flat)
    record_property("logits", logits)
    record_property("ssmax", ssmax)
    off = []
    for site, wanted in zip(rows, attentions_of(stock), strict=True):
        got = site.also[..., : wanted.shape[-1]]  # a sink is no entry of transformers' weights
        off.append(float(np.abs(got - wanted.numpy()).max()))
    record_property("weights", max(off))
    assert logits < 1e-5
    assert ssmax < 1e-5
    assert max(off) < 1e-5
    assert max(differences(swapped, stock)) > 1e-3


def differences(got: Any, wanted: Any) -> list[float]:
    """Returns the difference of each array of an output from the tensor of its name."""
    if isinstance(got, dict):
        return [value for name, part in got.items() for value in differences(part, wanted[name])]
    if isinstance(got, tuple):
        return [value for pair in zip(got, wanted) for value in differences(*pair)]
    return [difference(got, wanted.numpy())]


@pytest.mark.rare
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_traced_is_refused_in_one_line(name: str, record_property: Record):
    model, tensors = build(REFUSED[name])
    weights, apply = sj.from_torch(model)
    with pytest.raises(Refusal, match=REFUSED[name].reason) as caught:
        sj.sites(apply)(weights, **arrays(tensors))
    assert "\n" not in str(caught.value)
    record_property("refused", str(caught.value))
