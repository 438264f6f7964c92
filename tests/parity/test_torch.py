"""Weights and gradients against PyTorch and the entmax package, as `pytest tests/parity` runs them."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj

torch: Any = importlib.import_module("torch")
entmax: Any = importlib.import_module("entmax")

ROWS, N = 24, 65
ALPHAS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
# Bisection is theirs for any α; 100 halvings exhaust float64.
MAPS = {
    "softmax": (sj.softmax, lambda z: torch.softmax(z, -1)),
    "log_softmax": (sj.log_softmax, lambda z: torch.log_softmax(z, -1)),
    "sparsemax": (sj.sparsemax, lambda z: entmax.sparsemax(z, -1)),
    "entmax15": (sj.entmax15, lambda z: entmax.entmax15(z, -1)),
} | {
    f"entmax {alpha}": (
        lambda z, where, alpha=alpha: sj.entmax(z, where=where, alpha=alpha),
        lambda z, alpha=alpha: entmax.entmax_bisect(z, alpha, -1, 100),
    )
    for alpha in ALPHAS
}


def data(masked):
    random = np.random.default_rng(0)
    logits = random.normal(size=(ROWS, N)) * np.geomspace(0.1, 10, ROWS)[:, None]
    where = random.random((ROWS, N)) < 0.6 if masked else np.ones((ROWS, N), bool)
    where[:, 0] = True
    return logits, where, random.normal(size=(ROWS, N))


def theirs(weigh, logits, where, cotangent):
    """Weights and gradient in float64, row by row without the masked entries, as the package knows no mask."""
    weights, gradient = np.zeros_like(logits), np.zeros_like(logits)
    for row in range(len(logits)):
        visible = where[row]
        z = torch.tensor(logits[row, visible], dtype=torch.float64, requires_grad=True)
        out = weigh(z)
        out.backward(torch.tensor(cotangent[row, visible]))
        weights[row, visible], gradient[row, visible] = out.detach().numpy(), z.grad.numpy()
    return weights, gradient


@functools.partial(jax.jit, static_argnums=0)
def weights_and_gradient(weigh, logits, where, cotangent):
    weights, pull = jax.vjp(lambda z: weigh(z, where=where), logits)
    return weights, pull(cotangent)[0]


def ours(weigh, logits, where, cotangent, dtype):
    outputs = weights_and_gradient(weigh, jnp.asarray(logits, dtype), where, jnp.asarray(cotangent, dtype))
    return tuple(np.asarray(output, np.float64) for output in outputs)


# Above α = 2 float32 logits do not carry the digits of the smallest weights, and the slope of a weight near 0 has no
# bound: there the gradient of the row hangs on the smallest.
STEEP = "entmax 2.5", "entmax 3.0", "entmax 4.0"
CASES = [("float64", name) for name in MAPS] + [("float32", name) for name in MAPS if name not in STEEP]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_weights_and_gradients(dtype, name, masked):
    mine, peer = MAPS[name]
    logits, where, cotangent = data(masked)
    logits = logits.astype(dtype).astype(np.float64)
    with jax.enable_x64(dtype == "float64"):
        weights, gradient = ours(mine, logits, where, cotangent, dtype)
    their_weights, their_gradient = theirs(peer, logits, where, cotangent)
    weights = np.where(where, weights, 0)  # of which the logarithm is minus infinity
    np.testing.assert_allclose(weights, their_weights, atol=1e-9 if dtype == "float64" else 1e-5)
    np.testing.assert_allclose(gradient, their_gradient, atol=1e-5, rtol=1e-5 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9])
def test_gradient_in_alpha(alpha):
    logits, _, cotangent = data(False)
    tensor = torch.full((ROWS, 1), alpha, dtype=torch.float64, requires_grad=True)
    z = torch.tensor(logits, dtype=torch.float64)
    entmax.entmax_bisect(z, tensor, -1, 100).backward(torch.tensor(cotangent))
    with jax.enable_x64(True):
        weighted = lambda a: jnp.sum(sj.entmax(jnp.asarray(logits), alpha=a) * jnp.asarray(cotangent))  # noqa: E731
        mine = jax.jit(jax.grad(weighted))(jnp.full((ROWS, 1), alpha))
    np.testing.assert_allclose(mine, tensor.grad.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_gumbel_softmax_on_the_same_noise(monkeypatch, temperature, hard):
    logits, _, cotangent = data(False)
    torch.manual_seed(0)
    noise = -torch.empty(ROWS, N, dtype=torch.float64).exponential_().log().numpy()
    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape, dtype: jnp.asarray(noise, dtype))
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    out = torch.nn.functional.gumbel_softmax(z, tau=temperature, hard=hard, dim=-1)
    out.backward(torch.tensor(cotangent))

    def draw(z, where):
        return sj.gumbel_softmax(jax.random.key(0), z, where=where, temperature=temperature, hard=hard)

    weights, gradient = ours(draw, logits, np.ones((ROWS, N), bool), cotangent, jnp.float32)
    np.testing.assert_allclose(weights, out.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(gradient, z.grad.numpy(), atol=1e-5)
