"""The decoder of llama-like models, as a plain function of a parameter tree.

It takes the arrays of a checkpoint, stacked over layers, so that one compiled layer serves all (`jax.lax.scan`). Its
caller may weigh each layer's rows with numbers of that layer.

Products are in float32 with the highest precision on every device, unless `Sizes.products` names another type: a GPU
would round their inputs to TF32.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.normalizers import registry
from softmax_jax.normalizers.row import weigh

Logits = Float[Array, "heads queries keys"]
Visible = Bool[Array, "queries keys"]
Weigh = Callable[[Logits, Visible, Any], Logits]
"""Weights of a block of rows, from its logits, what each query sees, and the numbers of the layer."""
Parameters = dict[str, Any]
BLOCK = 256
"""Queries at most whose rows are weighed at a time; sequences of at most twice as many take one block."""
SEGMENTS = 4
"""Parts of a longer sequence, whose queries get only the keys up to the end of their part."""
FAR = 2**30
"""More keys than any sequence has; twice as many do not overflow in int32."""


class Cache(NamedTuple):
    """Keys, turned by their positions, and values of a sequence in every layer."""

    key: Float[Array, "layers length key_heads size"]
    value: Float[Array, "layers length key_heads size"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes and settings that the arrays of a checkpoint do not show."""

    heads: int
    key_heads: int
    context: int
    """Tokens of the longest sequence that the model was made for."""
    base: float = 10_000.0
    """The base of RoPE."""
    epsilon: float = 1e-5
    """The ε of RMSNorm."""
    window: int | None = None
    """Keys that a query sees at most, itself included; None for all before it."""
    windowed: tuple[bool, ...] | None = None
    """Which layers have the window; None for all."""
    rotary: int | None = None
    """Features of a head, from the first on, that RoPE turns; None for all."""
    scale: float | None = None
    """Factor of the logits; None for 1/√size of a head."""
    products: str = "float32"
    """Type that the inputs of a layer's products and of their gradients' are rounded to; all else is float32."""


def by_softmax(logits: Logits, visible: Visible, numbers: Any) -> Logits:
    """Weighs rows as the model was trained."""
    return jax.nn.softmax(logits, where=visible[None])


@functools.cache
def weigh_by(name: str) -> Weigh:
    """Returns the function that weighs the rows of every head by a normalizer."""
    normalizer = registry.normalizer(name)
    return lambda logits, visible, numbers: weigh(normalizer, logits, -1, visible[None])


class Adapted(NamedTuple):
    """A fixed matrix, and a product of two narrow ones that is added and learns.

    Source: Hu et al., "LoRA: Low-rank adaptation of large language models", arXiv 2106.09685.
    """

    matrix: Float[Array, "*layers outputs inputs"]
    narrow: Float[Array, "*layers rank inputs"]
    wide: Float[Array, "*layers outputs rank"]


def product(
    x: Float[Array, "*rows inputs"], matrix: Float[Array, "outputs inputs"] | Adapted, kind: str = "float32"
) -> Float[Array, "*rows outputs"]:
    """Multiplies rows by a matrix that is stored as checkpoints store it."""
    if isinstance(matrix, Adapted):
        narrowed = product(x, matrix.narrow, kind)
        return product(x, matrix.matrix, kind) + product(narrowed, matrix.wide, kind)
    return rounded_product("...i,oi->...o", x, matrix, kind)


def rounded_product(equation: str, x: Array, y: Array, kind: str) -> Array:
    """Returns a product of two arrays, whose inputs are rounded to a type, summed in float32; so are its gradients.

    Each axis of an array is one of the other or of the product, and one array may have `...`. Derivatives are those of
    reverse mode alone.
    """
    return _rounded(equation, x, y, kind)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _rounded(equation: str, x: Array, y: Array, kind: str) -> Array:
    rounded = x.astype(kind), y.astype(kind)
    return jnp.einsum(equation, *rounded, precision="highest", preferred_element_type=jnp.float32)


def _gradients(equation: str, kind: str, given: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    """Returns the gradients of a rounded product, each a product with its smaller array first.

    XLA on CPUs transposes the first, and computes whatever made it in the order of the transposed elements: a step of
    tuning SmolLM2 took 1.5 times as long where that was the larger one.
    """
    (x, y), (x_axes, y_axes, slope_axes) = given, re.split(",|->", equation)

    def gradient(array: Array, axes: str, other: Array, other_axes: str) -> Array:
        pair = (slope, slope_axes), (other, other_axes)
        (first, first_axes), (second, second_axes) = pair if slope.size <= other.size else pair[::-1]
        return rounded_product(f"{first_axes},{second_axes}->{axes}", first, second, kind).astype(array.dtype)

    return gradient(x, x_axes, y, y_axes), gradient(y, y_axes, x, x_axes)


_rounded.defvjp(lambda equation, x, y, kind: (_rounded(equation, x, y, kind), (x, y)), _gradients)


def rms_norm(x: Float[Array, "length width"], scale: Float[Array, " width"], epsilon: float) -> Array:
    """Divides each position by its root mean square, and multiplies each feature by its scale."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * scale[None]


def hidden(
    parameters: Parameters,
    sizes: Sizes,
    tokens: Int[Array, " length"],
    weigh: Weigh = by_softmax,
    numbers: Any = None,
    before: Cache | None = None,
) -> tuple[Float[Array, "length width"], Cache]:
    """Returns the hidden states of one sequence after the last layer, and its keys and values in every layer.

    `numbers` is a tree of arrays whose first axis is the layer; `weigh` gets those of its layer. With `before`, the
    tokens follow those whose keys and values it holds.
    """

    def layer(x: Array, layer_inputs: tuple[Parameters, Any, Cache | None, Array | None]) -> tuple[Array, Cache]:
        weights, numbers, past, reach = layer_inputs
        normed = rms_norm(x, weights["attention_norm"], sizes.epsilon)
        query, key, value = (_heads(normed, weights, name, sizes, start) for name in ("query", "key", "value"))
        if past is not None:
            key, value = (jnp.concatenate(pair) for pair in zip(past, (key, value)))
        attended = _attend(query, key, value, sizes, lambda logits, visible: weigh(logits, visible, numbers), reach)
        x = x + product(attended, weights["out"], sizes.products)
        normed = rms_norm(x, weights["perceptron_norm"], sizes.epsilon)
        gated = jax.nn.silu(product(normed, weights["gate"], sizes.products)) * product(
            normed, weights["up"], sizes.products
        )
        return x + product(gated, weights["down"], sizes.products), Cache(key[start:], value[start:])

    start = 0 if before is None else before.key.shape[1]
    room = -len(tokens) % _segments(len(tokens))[0]
    embedded = parameters["embed"][jnp.pad(tokens, (0, room))]  # what follows a token changes nothing for it
    again = jax.checkpoint(layer, prevent_cse=False)  # kept for a gradient, all that a layer computes takes gigabytes
    reaches = _reaches(sizes, len(parameters["layers"]["attention_norm"]))
    x, made = jax.lax.scan(again, embedded, (parameters["layers"], numbers, before, reaches))
    x, made = x[: len(tokens)], jax.tree.map(lambda array: array[:, : len(tokens)], made)
    return rms_norm(x, parameters["norm"], sizes.epsilon), made


def _reaches(sizes: Sizes, layers: int) -> Int[Array, " layers"] | None:
    """Returns how many keys a query of each layer sees at most; None where all see all."""
    if sizes.window is None:
        return None
    windowed = jnp.asarray(sizes.windowed or (True,) * layers)
    return jnp.where(windowed, jnp.int32(min(sizes.window, FAR)), jnp.int32(FAR))


def _heads(x: Array, weights: Parameters, name: str, sizes: Sizes, start: int) -> Float[Array, "length heads size"]:
    """Returns the queries, keys or values of a layer; queries and keys turned by their positions."""
    outputs = product(x, weights[name], sizes.products)
    if (bias := weights.get(f"{name}_bias")) is not None:
        outputs = outputs + bias[None]
    by_head = outputs.reshape(len(x), sizes.heads if name == "query" else sizes.key_heads, -1)
    return by_head if name == "value" else rotated(by_head, sizes.base, start, sizes.rotary)


def rotated(
    x: Float[Array, "length heads size"], base: float, start: int, rotary: int | None = None
) -> Float[Array, "length heads size"]:
    """Applies RoPE: turns pairs of features by an angle that grows with the position, of which the first is `start`.

    Of each head the first `rotary` features are turned, in pairs of one of their first half and one of their second;
    the others stay.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    if rotary is not None:
        return jnp.concatenate([rotated(x[..., :rotary], base, start), x[..., rotary:]], -1)
    half = x.shape[-1] // 2
    rates = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    places = jnp.arange(start, start + len(x), dtype=jnp.float32)
    angles = (places[:, None] * rates[None])[:, None]
    sine, cosine, (first, second) = jnp.sin(angles), jnp.cos(angles), jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def _attend(
    query: Array,
    key: Array,
    value: Array,
    sizes: Sizes,
    weigh: Callable[[Logits, Visible], Logits],
    reach: Int[Array, ""] | None,
) -> Float[Array, "length features"]:
    """Attends causally, in blocks of queries over whole rows, so that any normalizer weighs them.

    The last query is at the position of the last key. Queries see `reach` keys at most, or all before them.
    """
    length, _, size = query.shape
    start = len(key) - length
    scale = size**-0.5 if sizes.scale is None else sizes.scale
    grouped = query.reshape(length, sizes.key_heads, -1, size) * scale

    def attend_block(query: Array, places: Int[Array, " queries"], key: Array, value: Array) -> Array:
        seen = jnp.arange(len(key), dtype=jnp.int32)[None]
        visible = seen <= places[:, None]
        if reach is not None:
            visible &= seen > places[:, None] - reach
        logits = rounded_product("qkgs,nks->kgqn", query, key, sizes.products)
        weights = weigh(logits.reshape(sizes.heads, *visible.shape), visible)
        return rounded_product("kgqn,nks->qkgs", weights.reshape(logits.shape), value, sizes.products)

    places = jnp.arange(start, start + length, dtype=jnp.int32)
    part, block = _segments(length)
    attended = []
    for end in range(part, length + 1, part):
        blocks = [array[end - part : end].reshape(-1, block, *array.shape[1:]) for array in (grouped, places)]
        keys = key[: start + end], value[: start + end]
        attended.append(
            attend_block(blocks[0][0], blocks[1][0], *keys)
            if part == block
            else jax.lax.map(lambda array, keys=keys: attend_block(*array, *keys), tuple(blocks))
        )
    return jnp.concatenate([array.reshape(part, -1) for array in attended])


def _segments(length: int) -> tuple[int, int]:
    """Returns the queries of a part of a sequence, and of a block of that part."""
    if length <= 2 * BLOCK:
        return length, length
    blocks = -(-length // (SEGMENTS * BLOCK))
    block = -(-length // (SEGMENTS * blocks))
    return blocks * block, block


def scores(parameters: Parameters, hidden: Float[Array, "*positions width"]) -> Float[Array, "*positions tokens"]:
    """Returns the logits of every token to follow these positions."""
    return product(hidden, parameters.get("scores", parameters["embed"]))


def losses(
    parameters: Parameters, hidden: Float[Array, "length width"], tokens: Int[Array, " tokens"], block: int = 1024
) -> Float[Array, " following"]:
    """Returns -log p of every token but the first, in nats, from some positions at a time.

    `hidden` has the states after each token; that of the last may be missing.
    """
    positions = len(tokens) - 1
    room = -positions % min(block, positions)
    given = (jnp.pad(hidden[:positions], ((0, room), (0, 0))), jnp.pad(tokens[1:], (0, room)))

    def block_losses(pair: tuple[Array, Array]) -> Array:
        logits = scores(parameters, pair[0])
        return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, pair[1][:, None], -1)[:, 0]

    blocks = [array.reshape(-1, min(block, positions), *array.shape[1:]) for array in given]
    return jax.lax.map(block_losses, tuple(blocks)).reshape(-1)[:positions]
