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
# # Max retrieval: from nothing to the table
#
# One attention head learns to find the largest of at most 16 items. Then the sets grow to thousands, and the head loses
# what it found. This page makes the data, trains the head, puts other normalizers in the place of softmax without touching
# a parameter, looks at the attention, refits the adaptive temperature, and ends with a table beside that of the ten models
# that ship with the project.

# %%
import os
from pathlib import Path

import altair as alt
import jax
import jax.numpy as jnp
from flax import nnx
from rich.console import Console

from softmax_jax.commands.options import one_device_per_core
import softmax_jax
from softmax_jax import temperature
from softmax_jax.measures import refit
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.config import Config
from softmax_jax.measures.dispersion import attention_maps
from softmax_jax.measures.evaluation import evaluate, frame_of
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.measures.table import MEASURES
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.accuracy import accuracy_chart
from softmax_jax.report.dispersion import attention_map_chart
from softmax_jax.report.tables import groups_of, print_groups
from softmax_jax.report.temperature import entropy_chart
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.tasks.max_retrieval import sample
from softmax_jax.training.trainer import build_model, chunk_trainer, initial_state

one_device_per_core()
alt.renderers.enable("png", scale_factor=1.5)
STEPS, SEEDS = int(os.environ.get("STEPS", "8000")), int(os.environ.get("SEEDS", "4"))
ITEMS, SETS = int(os.environ.get("ITEMS", "16")), int(os.environ.get("SETS", "256"))
LONGEST = int(os.environ.get("LONGEST", "4096"))
LENGTHS = [n for n in (16, 64, 256, 1024, 4096) if n <= LONGEST]  # the first as in training, the others beyond
# Neither colours nor bold type would survive in a page.
console = Console(width=112, color_system=None, force_jupyter=False)

# %% [markdown]
# ## The data
#
# An item is a number ρ between 0 and 1 and a class, one of ten, as a one-hot vector: eleven features. The answer is the
# class of the item with the largest ρ. A set also has a query, one number that says nothing about the answer.

# %%
batch = sample(jax.random.key(0), sets=2, items=6, lengths=jnp.array([6, 3]))
for index in range(2):
    print("set", index, "answer", int(batch.answer[index]))
    for item, visible in zip(batch.items[index], batch.mask[index]):
        print(f"  ρ = {item[0]:.3f}  class {item[1:].argmax()}" if visible else "  masked")

# %% [markdown]
# ## The mask
#
# Sets of different sizes share an array, so some of its entries are padding. A mask says which entries the query can see.
# Masked entries get a weight of exactly 0, and the others are what they would be in a row of their own. A row in which
# nothing is visible is all 0.

# %%
logits = jnp.array([2.0, 1.0, 0.5, 9.0])
visible = jnp.array([True, True, True, False])
print("masked ", softmax_jax.softmax(logits, where=visible))
print("shorter", softmax_jax.softmax(logits[:3]))
print("nothing", softmax_jax.softmax(logits, where=jnp.zeros(4, bool)))

# %% [markdown]
# ## The model
#
# Items and query pass two dense layers each. One head attends from the query to the items, and two more layers read the
# class from what it found. The normalizer is an argument of the call, not a part of the model: no parameter depends on it.

# %%
config = Config(MaxRetrieval(max_items=ITEMS), steps=STEPS, seeds=SEEDS, l2=0.0005, schedule="cosine_decay_schedule")
structure, _ = build_model(config.task)
state = initial_state(config)
for path, leaf in jax.tree.leaves_with_path(state.parameters):
    print(f"{jax.tree_util.keystr(path, simple=True, separator='.'):24} {leaf.shape[1:]}")
print(f"{sum(leaf[0].size for leaf in jax.tree.leaves(state.parameters)):,} parameters, {SEEDS} seeds")

# %% [markdown]
# ## Training
#
# Each step draws 128 new sets of 5 to 16 items and follows the gradient of the cross-entropy under softmax, plus a small
# penalty on large parameters; the learning rate falls along a cosine. This is the recipe of `softmax_jax/configs/paper.py`, with fewer
# seeds and steps. The loop is compiled and comes back for a look a few times on its way; accuracy is that of the training
# sets.

# %%
train = chunk_trainer(config)
chunk = max(STEPS // 4, 1)
for start in range(0, STEPS, chunk):
    state, metrics = train(state, start, min(chunk, STEPS - start))
    cross_entropy, accuracy = metrics.cross_entropy.mean(), metrics.accuracy.mean()
    print(f"step {start + chunk:5}  cross-entropy {cross_entropy:.4f} nats  accuracy {accuracy:.1f} %")

# %% [markdown]
# ## Another normalizer, the same parameters
#
# Here is one set of the longest length, read by the first model under five normalizers. The logits are the same five
# times; only the weights differ.

# %%
NAMES = ["softmax", "adaptive", "ssmax", "entmax15", "hardmax"]
named = {name: normalizer(name) for name in NAMES}
model = nnx.merge(structure, jax.tree.map(lambda leaf: leaf[0], state.parameters))
one = sample(jax.random.key(1), sets=1, items=LONGEST)
print(f"{LONGEST} items, equal weights would be {1 / LONGEST:.5f}; the answer is {one.answer[0]}")
for name, some in named.items():
    found = model(one, some)
    print(f"{name:10} largest weight {found.weights.max():.5f}  says {found.scores.argmax()}")

# %% [markdown]
# One set proves nothing. So: many sets, every seed, and lengths far beyond those of training. Each set is encoded once and
# read by all normalizers.

# %%
seeds = list(range(SEEDS))
options = {"seeds": seeds, "lengths": LENGTHS, "sets": SETS}
measured = list(evaluate(state.parameters, named, measures=tuple(MEASURES), **options))
frame = frame_of(measured)


def by_length(frame, measure, form):
    """One measure of every normalizer as the cells of a table."""
    return groups_of(over_seeds(frame, ["normalizer", "n"], measure), [("", "value", form)])


print_groups(console, "Accuracy (%), mean over the seeds", by_length(frame, "accuracy", ".1f"), LENGTHS)
print_groups(console, "Largest weight, mean over all sets", by_length(frame, "max_weight", ".3f"), LENGTHS)

# %%
accuracy_chart(frame, "How far does attention reach? Trained on at most 16 items")

# %% [markdown]
# ## Attention maps
#
# What the first model looks at: in each panel a row is a set, and its columns are the sixteen items with the largest ρ, the
# largest on the left. A bright first column is attention that found its item. As sets grow, softmax spreads over the
# neighbours of that item and then fades. Hardmax stays bright, but lands beside it more and more often.

# %%
attention_map_chart(attention_maps(measured))

# %% [markdown]
# Even hardmax, which gives all its weight to the largest logit, fails on long sets: there the largest logit is not that of
# the largest item. What hardmax loses is not dispersion but an imprecise key.

# %% [markdown]
# ## Refit the temperature
#
# The published polynomial β(H) was fitted to another model. Fit it to these: search the best temperature of every row, pool
# the rows of like entropy, draw a polynomial through the best of each pool. One fit sees sets as long as those of training
# and no longer; the other sees all lengths of this page. Claims about longer sets can rest on the first alone.

# %%
fit_lengths = [n for n in (4, 8) if n <= ITEMS] + LENGTHS
keys = [jax.random.key(2**31 + 1), jax.random.key(2**31 + 2)]
searched = refit.search_lengths(state.parameters, seeds=seeds, lengths=fit_lengths, sets=max(SETS // 8, 1), keys=keys)
to_fit, held_out = (dict(zip(fit_lengths, some)) for some in zip(*searched))
fits = {}
for name, limit in ((temperature.ALL_LENGTHS, LONGEST), (temperature.TRAIN_LENGTHS, ITEMS)):
    seen, unseen = ({n: some for n, some in found.items() if n <= limit} for found in (to_fit, held_out))
    fits[name] = temperature.fit(seen, unseen, seeds=seeds)
    (low, high), (first, last) = fits[name].entropy_range, fits[name].beta_at_ends
    print(f"{name}: from H = {low:.2f} to {high:.2f} nats, β goes from {first:.2f} to {last:.2f}")

# %%
entropy_chart(to_fit, fits)

# %% [markdown]
# ## The table
#
# The last measurement, on sets that no cell above has seen: the models of this page, and below them the ten models of
# `checkpoints/paper_float32`, which trained for 100,000 steps, each with the fits made for them.

# %%
shipped = Path(softmax_jax.__file__).parents[1] / "checkpoints" / "paper_float32"
shipped_config, shipped_parameters = load_checkpoint(shipped)
shipped_seeds = shipped_config.all_seeds
refitted = {name: softmax_jax.Normalizer(softmax_jax.softmax, fit.scale) for name, fit in fits.items()}
shipped_fits = temperature.fits_beside(shipped, shipped_parameters)
shipped_refitted = {name: normalizer(f"adaptive(fit='{path}')") for name, path in shipped_fits.items()}


def accuracy(parameters, seeds, refitted):
    """Mean accuracy over the seeds, by normalizer and length."""
    contenders = {name: normalizer(name) for name in ("softmax", "adaptive", "hardmax")} | refitted
    key = jax.random.key(2**31 + 3)
    frame = frame_of(evaluate(parameters, contenders, seeds=seeds, lengths=LENGTHS, sets=SETS, key=key))
    return by_length(frame, "accuracy", ".1f")


here = accuracy(state.parameters, seeds, refitted)
there = accuracy(shipped_parameters, shipped_seeds, shipped_refitted)
print_groups(console, f"Accuracy (%): {SEEDS} seeds of this page", here, LENGTHS)
print_groups(console, f"Accuracy (%): {len(shipped_seeds)} seeds of the checkpoint", there, LENGTHS)

# %% [markdown]
# ## What to try next
#
# - `python evaluate.py` makes the table of the shipped models at every length from 2 to 16,384, with intervals and tests.
# - `python train.py paper` trains the ten models anew; `python train.py quick` trains one.
# - `python fit_temperature.py` refits β(H) to the shipped models, compares it with the best constants, and draws what it finds.
# - `SEEDS=10 STEPS=20000 docs/render max_retrieval` makes this page anew from more.
