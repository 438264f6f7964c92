"""*softmax is not enough* (Veličković et al., 2024) in one file: plain JAX, Flax and Optax.

    python examples/softmax_is_not_enough.py                    # train ten models, measure, fit, draw
    python examples/softmax_is_not_enough.py checkpoints/paper  # the same from models that are trained

A head learns to name the class of the largest of 5 to 16 items, and is asked among up to 4,096: softmax spreads its
weights over more and more of them. The adaptive temperature sharpens each row by its entropy, at test time only.
Operands of products are rounded to bfloat16 (BITS = 7), as TPUs do; no source that we could read names the device of
the paper (arXiv 2410.01104), whose recipe and polynomial are known second-hand.
"""

import sys
from pathlib import Path

import altair
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from orbax.checkpoint import v1 as ocp

WIDTH, CLASSES, SHORTEST, LONGEST = 128, 10, 5, 16
SEEDS, STEPS, CHUNK, BATCH, RATE, DECAY = 10, 100_000, 1_000, 128, 0.001, 0.001
LENGTHS, SETS = [2**power for power in range(1, 9)], 64
BITS = 7  # of the fraction, in the operands of a product
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)  # β(H), the highest power first


def sample(key, sets, items, shortest=None):
    """Returns items [ρ, one-hot κ], irrelevant queries, masks of visible items, and answers: κ of the largest ρ."""
    rho_key, kappa_key, query_key, length_key = jax.random.split(key, 4)
    rho = jax.random.uniform(rho_key, (sets, items))
    kappa = jax.random.randint(kappa_key, (sets, items), 0, CLASSES)
    length = jax.random.randint(length_key, (), shortest or items, items + 1)  # one for all sets of a batch
    visible = jnp.broadcast_to(jnp.arange(items) < length, (sets, items))
    answer = jnp.take_along_axis(kappa, jnp.where(visible, rho, -1).argmax(1)[:, None], 1)[:, 0]
    features = jnp.concatenate([rho[..., None], jax.nn.one_hot(kappa, CLASSES)], -1) * visible[..., None]
    return features, jax.random.uniform(query_key, (sets, 1)), visible, answer


def entropy(logits, where):
    """Returns the entropy of each row of softmax weights in nats, H = -Σ p log p."""
    weights = jax.nn.softmax(logits, where=where)
    return -(weights * jnp.log(weights + 1e-9)).sum(-1, keepdims=True)


def adaptive(logits, where, coefficients=PUBLISHED):
    """Returns softmax(β z) with β = max(polynomial(H), 1) in rows of H > 0.5 nats, and β = 1 in others."""
    h = entropy(logits, where)
    beta = jnp.where(h > 0.5, jnp.maximum(jnp.polyval(jnp.asarray(coefficients), h), 1), 1)
    return jax.nn.softmax(beta * logits, where=where)


NORMALIZERS = {"softmax": jax.nn.softmax, "adaptive temperature": adaptive}


def rounded(x):
    """Rounds to `BITS`, with the derivative of no rounding."""
    return x + jax.lax.stop_gradient(jax.lax.reduce_precision(x, 8, BITS) - x)


round_gradient = jax.custom_vjp(lambda x: x)  # forward nothing
round_gradient.defvjp(lambda x: (x, None), lambda _, gradient: (rounded(gradient),))


def product(a, b, dimensions, *_, **__):
    """Multiplies as `jax.lax.dot_general`, with rounded operands, forward and backward."""
    return round_gradient(jax.lax.dot_general(rounded(a), rounded(b), dimensions))


class Model(nnx.Module):
    """Dense-gelu-Dense-gelu for items and query, one head from the query to the items, Dense-gelu-Dense to scores."""

    def __init__(self, rngs):
        def dense(inputs, outputs):
            return nnx.Linear(inputs, outputs, dot_general=product, rngs=rngs)

        self.item_in, self.item_out = dense(1 + CLASSES, WIDTH), dense(WIDTH, WIDTH)
        self.query_in, self.query_out = dense(1, WIDTH), dense(WIDTH, WIDTH)
        self.attention_query, self.attention_key = dense(WIDTH, WIDTH), dense(WIDTH, WIDTH)
        self.attention_value, self.attention_out = dense(WIDTH, WIDTH), dense(WIDTH, WIDTH)
        self.read_in, self.read_out = dense(WIDTH, WIDTH), dense(WIDTH, CLASSES)

    def attend(self, items, query):
        """Returns logits and hidden items. One query a set needs no key for each item: q·(Wh + b) = (Wᵀq)·h + q·b."""
        hidden = nnx.gelu(self.item_out(nnx.gelu(self.item_in(items))))
        q = self.attention_query(nnx.gelu(self.query_out(nnx.gelu(self.query_in(query)))))
        folded = jnp.einsum("so,io->si", q, self.attention_key.kernel[...], _dot_general=product)
        shift = jnp.einsum("so,o->s", q, self.attention_key.bias, _dot_general=product)
        logits = jnp.einsum("snw,sw->sn", hidden, folded, _dot_general=product) + shift[:, None]
        return logits / WIDTH**0.5, hidden

    def __call__(self, items, query, visible, normalize=jax.nn.softmax):
        """Returns class scores. `normalize` is all that differs between the rows of the paper's table."""
        logits, hidden = self.attend(items, query)
        pooled = jnp.einsum("sn,snw->sw", normalize(logits, where=visible), hidden, _dot_general=product)
        value = self.attention_value(pooled)  # of the weighted sum: it is the sum of the values, as weights sum to 1
        return self.read_out(nnx.gelu(self.read_in(self.attention_out(value))))


STRUCTURE = nnx.graphdef(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
OPTIMIZER = optax.adamw(RATE, weight_decay=DECAY)


def loss(parameters, items, query, visible, answer):
    """Returns the mean cross-entropy in nats."""
    scores = nnx.merge(STRUCTURE, parameters)(items, query, visible)
    return optax.softmax_cross_entropy_with_integer_labels(scores, answer).mean()


@jax.jit
@jax.vmap
def start(key):
    """Returns random parameters and the state of the optimizer."""
    parameters = nnx.to_pure_dict(nnx.state(Model(nnx.Rngs(key))))
    return parameters, OPTIMIZER.init(parameters)


@jax.jit
@jax.vmap
def train(state, key):
    """Takes `CHUNK` steps, on new sets each, of all seeds at once."""

    def step(state, step_key):
        parameters, moments = state
        value, gradient = jax.value_and_grad(loss)(parameters, *sample(step_key, BATCH, LONGEST, SHORTEST))
        updates, moments = OPTIMIZER.update(gradient, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    state, losses = jax.lax.scan(step, state, jax.random.split(key, CHUNK))
    return state, losses.mean()


def accuracies(parameters, length):
    """Returns accuracies in percent, seeds by normalizers; each seed has sets of its own, all normalizers the same."""

    def of_seed(pair):
        def answers_right(key):
            *inputs, answer = sample(key, 1, length)
            return jnp.stack([model(*inputs, normalize)[0].argmax() == answer[0] for normalize in NORMALIZERS.values()])

        model, keys = nnx.merge(STRUCTURE, pair[0]), jax.random.split(pair[1], SETS)
        return 100 * jax.lax.map(answers_right, keys, batch_size=max(2**14 // length, 1)).mean(0)

    pairs = parameters, jax.random.split(jax.random.key(length), SEEDS)
    return jax.jit(lambda pairs: jax.lax.map(of_seed, pairs))(pairs)


def best_beta(logits, target):
    """Returns β of the largest weight of the true item in each row, NaN outside [1/8, 64]: E[z] = z_t by halving."""
    z = logits - jnp.take_along_axis(logits, target[:, None], 1)
    z = jnp.where(jnp.arange(z.shape[1]) == target[:, None], 0, z)  # where a compiler joins products and differences
    low, high = (jnp.full((len(z), 1), jnp.log(beta)) for beta in (1 / 8, 64))
    mean = lambda log_beta: (jax.nn.softmax(jnp.exp(log_beta) * z) * z).sum(-1, keepdims=True)  # noqa: E731
    inside = (mean(low) < 0) & (mean(high) > 0)
    for _ in range(30):
        below = mean(middle := (low + high) / 2) < 0
        low, high = jnp.where(below, middle, low), jnp.where(below, high, middle)
    return jnp.where(inside, jnp.exp((low + high) / 2), jnp.nan)[:, 0]


@jax.jit
@jax.vmap
def rows(parameters, items, query, visible, answer):
    """Returns entropy and best β of each row of logits."""
    logits, _ = nnx.merge(STRUCTURE, parameters).attend(items, query)
    return entropy(logits, visible)[:, 0], best_beta(logits, items[..., 0].argmax(1))


def fit(entropies, betas):
    """Returns the polynomial β(H) of degree 4 through the rows of H > 0.5 nats that have a best β."""
    kept = np.isfinite(betas) & (entropies > 0.5)
    return np.polyfit(entropies[kept].astype(float), betas[kept].astype(float), 4)


def main(directory=None):
    """Trains or loads, fits, measures, draws."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    state = start(keys)
    for steps in range(0, STEPS if directory is None else 0, CHUNK):
        state, losses = train(state, jax.vmap(jax.random.fold_in, (0, None))(keys, steps))
        print(f"step {steps + CHUNK}: loss {losses.mean():.3f} nats", flush=True)
    parameters = state[0] if directory is None else ocp.load(str(Path(directory, "parameters").resolve()), state[0])
    drawn = [jax.vmap(lambda key, n=n: sample(key, 64, n))(keys) for n in LENGTHS if n >= LONGEST]
    refit = fit(*(np.concatenate(parts, 1).ravel() for parts in zip(*(rows(parameters, *sets) for sets in drawn))))
    for name, coefficients in {"published": PUBLISHED, "fitted": refit}.items():
        print(f"β at 1, 2, 3 and 4 nats, {name}:", *np.polyval(coefficients, [1, 2, 3, 4]).round(2))
    table = []
    for length in LENGTHS:
        for name, mean in zip(NORMALIZERS, accuracies(parameters, length).mean(0).tolist()):
            table.append({"items": length, "normalizer": name, "accuracy": mean})
            print(f"{length:5} items, {name}: {mean:.1f} % right", flush=True)
    x, y = altair.X("items:Q").scale(type="log", base=2), altair.Y("accuracy:Q").title("accuracy (%)")
    chart = altair.Chart(altair.Data(values=table)).mark_line(point=True).encode(x=x, y=y, color="normalizer:N")
    chart.save("softmax_is_not_enough.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
