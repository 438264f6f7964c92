"""CLRS-Text without hints, seven algorithms, one token per number: one seed, 1.2 million parameters.

Command:  python train.py clrs_text
Cost:     29.5 minutes on 2 CPU cores with some other work beside it, at 3.1 steps a second (2026-11-23).
Score:    minimum 99.6 %, binary_search 96.6 %, quickselect 82.7 %, find_maximum_subarray_kadane 80.6 %,
          kmp_matcher 20.5 %, activity_selector 15.8 %, insertion_sort 84.1 %.
"""

from softmax_jax.tasks.clrs_text import ClrsText
from softmax_jax.training.config import Config

CONFIG = Config(
    ClrsText(),
    steps=5_500,
    l2=0.0,
    optimizer="chain(clip_by_global_norm(1.0), muon(consistent_rms=0.2, adam_b2=0.99, weight_decay=0.01))",
    learning_rate=0.004,
    schedule="warmup_cosine_decay_schedule(warmup_steps=200)",
    chunk=50,
    chunks_per_checkpoint=5,
)
