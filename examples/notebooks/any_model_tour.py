# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Any model: a tour
#
# Here is a model that knows nothing of this library: stock Flax layers, and a softmax somewhere within them. It learns to name
# the class of the largest of at most 16 items. Then its softmaxes are found, measured on longer sets, swapped, and their
# numbers learned, and no line of the model is changed. `docs/any_model.md` says what each step can and cannot do.

# %%
import os

import altair as alt
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from rich.console import Console

import softmax_jax as sj
from softmax_jax.experiment.report import model_page as looks
from softmax_jax.experiment.report.tables import print_groups
from softmax_jax.experiment.tasks.max_retrieval import sample

alt.renderers.enable("png", scale_factor=1.5)
STEPS, SETS = int(os.environ.get("STEPS", "3000")), int(os.environ.get("SETS", "512"))
LONGEST = int(os.environ.get("LONGEST", "1024"))
LENGTHS = [n for n in (16, 64, 256, 1024) if n <= LONGEST]  # the first as in training, the others beyond
WIDTH, HEADS = 64, 4


class Finder(nnx.Module):
    """A query looks at the items twice, with four heads each time."""

    def __init__(self, rngs):
        self.embed = nnx.Linear(11, WIDTH, rngs=rngs)
        self.query = nnx.Param(jnp.ones((1, 1, WIDTH)))
        self.looks = nnx.List([nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs) for _ in range(2)])
        self.classes = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, items):
        hidden = nnx.gelu(self.embed(items))
        query = jnp.broadcast_to(self.query[...], (len(items), 1, WIDTH))
        for number, attention in enumerate(self.looks):
            with jax.named_scope(f"look_{number}"):
                query = query + attention(query, hidden)
        return self.classes(query[:, 0])


# %% [markdown]
# ## Train it

# %%
structure, parameters = nnx.split(Finder(nnx.Rngs(0)), nnx.Param)
optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, STEPS))


def apply(parameters, items):
    return nnx.merge(structure, parameters)(items)


def cross_entropy(scores, answer):
    return optax.softmax_cross_entropy_with_integer_labels(scores, answer).mean()


@jax.jit
def step(state, key):
    batch = sample(key, 128, 16)
    loss, gradient = jax.value_and_grad(lambda p: cross_entropy(apply(p, batch.items), batch.answer))(state[0])
    updates, moments = optimizer.update(gradient, state[1])
    return (optax.apply_updates(state[0], updates), moments), loss


(parameters, _), losses = jax.lax.scan(
    step, (parameters, optimizer.init(parameters)), jax.random.split(jax.random.key(0), STEPS)
)
print(f"loss: {losses[0]:.2f} at first, {losses[-1]:.3f} at last")

# %% [markdown]
# ## Find
#
# Every softmax of the program, by what it computes: where it stands, the shape of its logits (sets, heads, queries, items), and
# what its weights are used for.

# %%
tests = {n: sample(jax.random.key(n), SETS, n) for n in LENGTHS}
print(sj.sites(apply)(parameters, tests[16].items))

# %% [markdown]
# ## Probe
#
# The same output, and beside it what the weights of every row look like. Entropy grows with the length of the sets; the dashed
# line is that of equal weights.

# %%
probe = jax.jit(sj.probe(apply))
found = {n: probe(parameters, batch.items)[1] for n, batch in tests.items()}
frame = looks.head_means(found)
looks.entropy_chart(frame)

# %% [markdown]
# Heads differ. The next picture has a row for each head and a column for each length; a share of 1 means that the head looks at
# all items alike.

# %%
looks.evenness_chart(frame)

# %% [markdown]
# `looks.model_page(found, "page", "How does it attend?")` writes these charts into one page that opens offline.
#
# ## Swap
#
# Any normalizer replaces softmax, in all sites or in some. A swap to softmax changes no bit.


# %%
def accuracy(apply):
    right = {
        n: (jax.jit(apply)(parameters, batch.items).argmax(-1) == batch.answer).mean() for n, batch in tests.items()
    }
    return {"": {n: f"{100 * float(share):.1f}" for n, share in right.items()}}


choices = ["softmax", "adaptive", "ssmax", "entmax15", "hardmax", {"look_1": "hardmax"}]
table = {str(chosen): accuracy(sj.swap(apply, chosen)) for chosen in choices}
console = Console(width=112, color_system=None, force_jupyter=False)
print_groups(console, "Accuracy (%) by items in the set", table, LENGTHS)

# %% [markdown]
# ## Calibrate
#
# SSMax multiplies the logits by s·log n. Its s can be learned, one for each site and head, on sets as short as those of
# training, while the weights of the model stay as they are.


# %%
def loss(apply, key):
    batch = sample(key, 128, 16)
    return cross_entropy(apply(parameters, batch.items), batch.answer)


numbers = sj.calibrate(
    apply,
    "ssmax",
    learn=("s",),
    loss=loss,
    batches=list(jax.random.split(jax.random.key(1), 100)),
    optimizer=optax.adam(0.01),
)
for site, normalizer in numbers.items():
    print(f"site {site}: s = {', '.join(f'{float(s):.2f}' for s in jnp.ravel(normalizer.scale.s))}")
learned = {
    name: accuracy(sj.swap(apply, chosen)) for name, chosen in (("ssmax", "ssmax"), ("ssmax, learned s", numbers))
}
print_groups(console, "Accuracy (%) by items in the set", learned, LENGTHS)

# %% [markdown]
# ## What to try next
#
# - Put your own function in place of `apply`: its arguments are what you pass to it.
# - `python -m examples.minilm --output page` does this to a pretrained model; `python -m examples.needle` asks whether a swap
#   helps it to find a sentence in a long text.
