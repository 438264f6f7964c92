"""The best temperature of a row of attention logits, and polynomials of the row's entropy fitted to it.

Nothing here knows a task: `search` takes the logits and values of any attention head and the user's own loss.
The steps are `search` (rows), `points` (what a criterion calls best at which entropy), `fit`.
"""

from softmax_jax.temperature.curves import points as points
from softmax_jax.temperature.fitting import (
    TemperatureFit as TemperatureFit,
    cross_validate as cross_validate,
    fit as fit,
)
from softmax_jax.temperature.optimum import Rows as Rows, join as join, search as search
