"""CLRS-Text without hints, seven algorithms, one token per number: one seed.

Command:  python train.py clrs_text
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
