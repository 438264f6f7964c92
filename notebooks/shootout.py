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
# # Softmax, SSMax, Softpick: what is the difference?
#
# Attention turns a row of logits into weights. Softmax is one way to do that; this page puts others in its place, one
# after the other, with nothing else changed: first by hand, on rows of ten numbers, then inside a small transformer that
# has to find a pattern hidden in noise.
#
# Two of the contenders carry names under which formulas have circulated that are not those of the papers. They take part
# under names of their own, `shifted_softmax` and `signed_l1`, so that you can see what they really do.

# %%
import os
from pathlib import Path

import altair as alt
from rich.console import Console

from softmax_jax.commands.options import one_device_per_core
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.commands.shootout import compete
from softmax_jax.report import looks, shootout as report
from softmax_jax.tasks.signal import Signal
from softmax_jax.training.config import Config

one_device_per_core()
alt.renderers.enable("png", scale_factor=1.5)
NAMES = os.environ.get("NAMES", "softmax ssmax softpick shifted_softmax signed_l1").split()
EPOCHS, SEEDS = int(os.environ.get("EPOCHS", "15")), int(os.environ.get("SEEDS", "5"))
RUNS = Path(os.environ.get("RUNS", "runs/shootout/notebook"))
LENGTHS = [int(length) for length in os.environ.get("LENGTHS", "32 128 512").split()]
named = {name: normalizer(name) for name in NAMES}
show = Console(width=112, color_system=None, force_jupyter=False).print

# %% [markdown]
# ## Five formulas
#
# Read the table from the left: what is done to a logit $z$, and which numbers the formula takes. SSMax multiplies the
# logits by a number that grows with the length $n$ of the row. `shifted_softmax` subtracts such a number instead, and
# softmax does not see a shift.

# %%
show(looks.formula_table(NAMES))

# %% [markdown]
# ## The same ten logits through each
#
# Two of the ten stand out, 2.5 and 2.0. Softmax gives every entry something. Softpick gives nothing to logits of 0 or
# less, and its row sums to less than 1. `signed_l1` gives negative logits negative weights. The first and the fourth row
# of the table are the same row.

# %%
show(looks.weight_table(named, looks.SCORES, "Ten logits through each"))

# %%
looks.weight_chart(named, {"": looks.SCORES}, "What does each normalizer make of the same ten logits?")

# %% [markdown]
# ## A concentrated row and a diffuse one
#
# One logit of 5 among zeros, then ten logits near 1. All five see the difference; they differ in what they leave to the
# small entries of the first row.

# %%
show(looks.weight_table(named, looks.CONCENTRATED, "A concentrated row"))
show(looks.weight_table(named, looks.DIFFUSE, "A diffuse row"))

# %%
looks.weight_chart(
    named,
    {"concentrated": looks.CONCENTRATED, "diffuse": looks.DIFFUSE},
    "Does it tell a concentrated row from a diffuse one?",
)

# %% [markdown]
# ## Longer rows
#
# Now one logit of 3 stands among $n - 1$ others between −0.5 and 0.5, and $n$ grows. Its weight under softmax falls as
# $1/n$: that is dispersion, and no training changes it. Softpick starts higher and falls the same way, because every small
# positive logit still enters its sum. SSMax multiplies by $\log n$ and holds its ground, just about: with its default
# factor $s$ the lead of 2.5 over the strongest others is close to the least that suffices.

# %%
swept = looks.sweep(named)
show(looks.sweep_table(swept))

# %%
looks.sweep_chart(swept)

# %% [markdown]
# ## Five transformers
#
# The task: 32 positions of noise with 64 features each; somewhere three steps of a pattern are added, and the model names
# which of four patterns it was. Training and test sequences come from independent keys. The transformers have
# two layers, four heads and width 64, and start from the same parameters; SSMax learns its $s$, one for each head.

# %%
task = Signal()
epoch = task.steps_per_epoch
config = Config(task, steps=EPOCHS * epoch, seeds=SEEDS, l2=0.0, learning_rate=3e-4, chunk=epoch)
outcomes = compete(config, NAMES, LENGTHS, RUNS, Console(quiet=True))
show(report.results_table(outcomes, task.length))

# %% [markdown]
# The losses of `shifted_softmax` are those of softmax, as they must be: what differs is the rounding of float32.

# %%
softmax_losses, shifted_losses = (
    outcomes.losses.filter(normalizer=name)["loss"] for name in ("softmax", "shifted_softmax")
)
print(f"largest difference of the two loss curves: {(softmax_losses - shifted_losses).abs().max():.1e} nats")

# %%
report.curve_chart(outcomes)

# %% [markdown]
# ## Trained short, tested long
#
# All five end near the ceiling at the length they were trained at. The question that leaves open is the interesting one:
# the same models on sequences up to sixteen times as long, where one pattern hides in sixteen times as much noise.

# %%
show(report.lengths_table(outcomes))

# %%
report.length_chart(outcomes)

# %% [markdown]
# ## What to try next
#
# - `python shootout.py --test-lengths 32 64 128 256 512` does all of this and keeps the tables; `--signal-length 1` or
#   `--classes 16` make the task harder, `--hidden 16 --heads 1` the model smaller.
# - `python shootout.py --pooling last` reads the answer from the last position, so that attention alone must find it.
# - `python shootout.py --task multi-query` and its siblings train at up to 64 items and test at up to 4,096.
# - `--normalizers softmax entmax15 asentmax "top_k(k=4)"`: any registered name takes part, yours too once it is registered.
