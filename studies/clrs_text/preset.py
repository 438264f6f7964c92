"""CLRS-Text without hints, seven algorithms, one token per number: one seed, 1.2 million parameters.

Command:  python train.py clrs_text
Cost:     24 minutes on 2 quiet CPU cores, at 5.1 steps a second (2026-11-24).
Score:    minimum 99.3 %, binary_search 96.0 %, insertion_sort 98.3 %, quickselect 85.2 %,
          find_maximum_subarray_kadane 85.3 %, kmp_matcher 20.6 %, activity_selector 25.3 %.
"""

from softmax_jax.experiment.training.config import Config
from studies.clrs_text.task import ClrsText

CONFIG = Config(
    ClrsText(),
    steps=7_500,
    l2=0.0,
    optimizer="chain(clip_by_global_norm(1.0), muon(consistent_rms=0.2, adam_b2=0.99, weight_decay=0.01))",
    learning_rate=0.004,
    schedule="warmup_cosine_decay_schedule(warmup_steps=200)",
    chunk=50,
    chunks_per_checkpoint=5,
)
