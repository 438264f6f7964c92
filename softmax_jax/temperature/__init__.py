"""The best temperature of a row of attention logits, and polynomials of the row's entropy fitted to it.

Nothing here knows a task: `search` takes the logits and values of any attention head and the user's own loss.
The steps are `search` (rows), `points` (what a criterion calls best at which entropy), `fit`.
"""

from softmax_jax.temperature.curves import (
    BIN_WIDTH as BIN_WIDTH,
    CRITERIA as CRITERIA,
    LEAST_ROWS as LEAST_ROWS,
    THRESHOLD as THRESHOLD,
    Bins as Bins,
    Criterion as Criterion,
    Curve as Curve,
    Points as Points,
    apply_curve as apply_curve,
    isotonic_curve as isotonic_curve,
    isotonic_points as isotonic_points,
    points as points,
    points_of_bins as points_of_bins,
    polynomial as polynomial,
    polynomial_curve as polynomial_curve,
    pool as pool,
    r_squared as r_squared,
    ruled as ruled,
    smooth_errors as smooth_errors,
    spline_curve as spline_curve,
)
from softmax_jax.temperature.fitting import (
    CANDIDATES as CANDIDATES,
    Candidate as Candidate,
    TemperatureFit as TemperatureFit,
    bootstrap as bootstrap,
    cross_validate as cross_validate,
    fit as fit,
)
from softmax_jax.temperature.optimum import (
    GRID_SIZE as GRID_SIZE,
    LOG_THETA as LOG_THETA,
    SPACING as SPACING,
    THETA_RANGE as THETA_RANGE,
    TIE as TIE,
    Rows as Rows,
    golden_section as golden_section,
    join as join,
    search as search,
)
