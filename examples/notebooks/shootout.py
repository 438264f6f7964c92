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
# # Softmax, SSMax, Softpick: five normalizers on one small task
#
# Five normalizers train the same small transformer to find a pattern in noise, and are tested on longer sequences.
# `shifted_softmax` and `signed_l1` are formulas that went around under the names SSMax and Softpick; the first is softmax.
# The board on [Train and test](../../docs/train_and_test.md) has this task beside six others.
#
# `docs/render shootout` runs this page, `python shootout.py` the same.

# %%
import os
from pathlib import Path

import altair as alt
from rich.console import Console

from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.experiment.commands.shootout import compete
from softmax_jax.experiment.report import shootout as report
from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.training.config import Config

one_device_per_core()
alt.renderers.enable("png", scale_factor=1.5)
NAMES = os.environ.get("NAMES", "softmax ssmax softpick shifted_softmax signed_l1").split()
EPOCHS, SEEDS = int(os.environ.get("EPOCHS", "15")), int(os.environ.get("SEEDS", "5"))
RUNS = Path(os.environ.get("RUNS", "runs/shootout/notebook"))
LENGTHS = [int(length) for length in os.environ.get("LENGTHS", "32 128 512").split()]
named = {name: normalizer(name) for name in NAMES}
show = Console(width=112, color_system=None, force_jupyter=False).print

# %% [markdown]
# ## Trained at 32 positions, tested at 512
#
# 32 positions of noise with 64 features; somewhere three steps of a pattern are added, and the model names which of four it
# was. Training and test have independent keys. Two layers, four heads, width 64, the same first parameters; SSMax learns its
# $s$ for each head.

# %%
task = Signal()
epoch = task.steps_per_epoch
config = Config(task, steps=EPOCHS * epoch, seeds=SEEDS, l2=0.0, learning_rate=3e-4, chunk=epoch)
outcomes = compete(config, NAMES, LENGTHS, RUNS, Console(quiet=True))
show(report.results_table(outcomes, task.length))

# %%
show(report.lengths_table(outcomes))

# %%
report.length_chart(outcomes)

# %% [markdown]
# The loss curves of `shifted_softmax` and softmax differ by 0.0 nats.

# %%
report.curve_chart(outcomes)

# %% [markdown]
# ## The same ten logits through each
#
# SSMax multiplies the logits by $s \log n$, which grows with the length $n$ of the row. `shifted_softmax` subtracts it, and
# softmax does not see a shift. Softpick gives nothing to logits of 0 or less, and its row sums to less than 1. `signed_l1` is
# $z / (1 + \sum |z|)$: negative logits get negative weights.

# %%
report.weight_chart(named, {"": report.SCORES}, "What does each normalizer make of the same ten logits?")

# %% [markdown]
# One logit of 5 among zeros, then ten logits near 1. All five tell them apart; they differ in small
# entries.

# %%
report.weight_chart(
    named,
    {"concentrated": report.CONCENTRATED, "diffuse": report.DIFFUSE},
    "Does it tell a concentrated row from a diffuse one?",
)

# %% [markdown]
# ## One logit of 3 keeps its weight in longer rows under SSMax only
#
# One logit of 3 stands among $n - 1$ others between −0.5 and 0.5. Under softmax its weight falls as $1/n$, from 0.65 at 8 to
# 0.0003 at 65,536. Softpick starts at 0.83 and falls the same way: every small positive logit enters its sum. SSMax keeps
# 0.52, just about: with its default $s$ a lead of 2.5 is close to the least that suffices.

# %%
swept = report.sweep(named)
report.sweep_chart(swept)

# %% [markdown]
# ## What does not follow
#
# That SSMax is best: one task, one size, five seeds. To try, with `python shootout.py`:
#
# - `--test-lengths 32 64 128 256 512`; `--signal-length 1`, `--classes 16` (harder), `--hidden 16 --heads 1` (smaller),
#   `--pooling last` (attention alone finds the answer);
# - `--task multi-query` and its siblings, to 4,096 items;
# - `--normalizers softmax entmax15 asentmax "top_k(k=4)"`: any registered name.
