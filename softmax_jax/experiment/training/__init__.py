"""Settings, the compiled loop, and a run from its directory to its end."""

from softmax_jax.refusal import require

require("training", "filelock", "flax", "optax", "orbax", "tyro")
