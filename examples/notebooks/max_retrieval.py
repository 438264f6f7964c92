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
# A head trained on at most 16 items answers 99.6 % of sets of 16 and 26.5 % of sets of 4,096. Under other
# normalizers the same parameters answer up to 61.7 %.

# %%
import os
from pathlib import Path

import altair as alt
import jax
from rich.console import Console

from softmax_jax.experiment.commands.process import one_device_per_core
import softmax_jax
from softmax_jax import temperature
from softmax_jax.experiment.measures import refit
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.measures.dispersion import attention_maps
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.runs import fits_beside
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import MEASURES
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.experiment.report.accuracy import accuracy_chart
from softmax_jax.experiment.report.dispersion import attention_map_chart
from softmax_jax.experiment.report.tables import groups_of, print_groups
from softmax_jax.experiment.report.temperature import entropy_chart
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.experiment.training.trainer import chunk_trainer

one_device_per_core()
alt.renderers.enable("png", scale_factor=1.5)
STEPS, SEEDS = int(os.environ.get("STEPS", "8000")), int(os.environ.get("SEEDS", "4"))
ITEMS, SETS = int(os.environ.get("ITEMS", "16")), int(os.environ.get("SETS", "256"))
LONGEST = int(os.environ.get("LONGEST", "4096"))
LENGTHS = [n for n in (16, 64, 256, 1024, 4096) if n <= LONGEST]  # the first as in training, the others beyond
console = Console(width=112, color_system=None, force_jupyter=False)

# %% [markdown]
# ## The data
#
# An item is a number ρ between 0 and 1 and one of ten classes as a one-hot vector: eleven features. The answer is the class
# of the item with the largest ρ. Sets of different sizes share an array; masked entries get a weight of exactly 0. The query
# says nothing about the answer.
#
# ## Training
#
# Items and query pass two dense layers each, one head attends, two more layers read the class. Each step draws 128 new sets
# of 5 to 16 items; the loss is cross-entropy under softmax with a small penalty on large parameters. This is the recipe of
# `configs/paper_float32.py` with fewer seeds and steps.

# %%
config = Config(MaxRetrieval(max_items=ITEMS), steps=STEPS, seeds=SEEDS, l2=0.0005, schedule="cosine_decay_schedule")
run = build_run(config)
state, train = run.initial_state(), chunk_trainer(run)
print(f"{sum(leaf[0].size for leaf in jax.tree.leaves(state.parameters)):,} parameters, {SEEDS} seeds")
chunk = max(STEPS // 4, 1)
for start in range(0, STEPS, chunk):
    state, metrics = train(state, start, min(chunk, STEPS - start))
    cross_entropy, accuracy = metrics.cross_entropy.mean(), metrics.accuracy.mean()
    print(f"step {start + chunk:5}  cross-entropy {cross_entropy:.4f} nats  accuracy {accuracy:.1f} %")

# %% [markdown]
# ## Another normalizer, the same parameters
#
# No parameter depends on the normalizer: it is an argument of the call.

# %%
named = {name: normalizer(name) for name in ("softmax", "adaptive", "ssmax", "entmax15", "hardmax")}
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
# What the first model looks at: a row is a set, its columns are the sixteen items with the largest ρ, the largest on the
# left. As sets grow, softmax spreads over the neighbours of that item and then fades. Hardmax stays bright, but lands beside
# it more often: what it loses is not dispersion but an imprecise key.

# %%
attention_map_chart(attention_maps(measured))

# %% [markdown]
# ## Refit the temperature
#
# The published polynomial β(H) was fitted to another model. Here we search the best temperature of every row, pool rows of
# like entropy, and fit the best of each pool. One fit sees sets as long as those of training, the other all lengths.

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
# On new sets: the models of this page, then the ten of `checkpoints/paper_float32`, trained for 100,000 steps, each with its
# own fits.

# %%
shipped = Path(softmax_jax.__file__).parents[1] / "checkpoints" / "paper_float32"
shipped_config, shipped_parameters = load_checkpoint(shipped)
shipped_seeds = shipped_config.all_seeds
refitted = {name: softmax_jax.Normalizer(softmax_jax.softmax, fit.scale) for name, fit in fits.items()}
shipped_fits = fits_beside(shipped, shipped_parameters)
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
# `python evaluate.py` makes the table of the shipped models, with intervals and tests; with `--full` at every length. `python
# train.py quick` trains one model, `python train.py paper` ten. `SEEDS=10 STEPS=20000 docs/render max_retrieval` makes this
# page from more.
