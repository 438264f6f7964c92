"""The best temperature of a row of attention logits, and polynomials of the row's entropy fitted to it.

Nothing here knows a task: `search` takes the logits and values of any attention head and the user's own loss.
The steps are `search` (rows), `points` (what a criterion calls best at which entropy), `fit`.
"""

from softmax_jax.temperature.curves import BIN_WIDTH as BIN_WIDTH
from softmax_jax.temperature.curves import CRITERIA as CRITERIA
from softmax_jax.temperature.curves import LEAST_ROWS as LEAST_ROWS
from softmax_jax.temperature.curves import THRESHOLD as THRESHOLD
from softmax_jax.temperature.curves import Bins as Bins
from softmax_jax.temperature.curves import Criterion as Criterion
from softmax_jax.temperature.curves import Curve as Curve
from softmax_jax.temperature.curves import Points as Points
from softmax_jax.temperature.curves import apply_curve as apply_curve
from softmax_jax.temperature.curves import isotonic_curve as isotonic_curve
from softmax_jax.temperature.curves import isotonic_points as isotonic_points
from softmax_jax.temperature.curves import points as points
from softmax_jax.temperature.curves import points_of_bins as points_of_bins
from softmax_jax.temperature.curves import polynomial as polynomial
from softmax_jax.temperature.curves import polynomial_curve as polynomial_curve
from softmax_jax.temperature.curves import pool as pool
from softmax_jax.temperature.curves import r_squared as r_squared
from softmax_jax.temperature.curves import ruled as ruled
from softmax_jax.temperature.curves import smooth_errors as smooth_errors
from softmax_jax.temperature.curves import spline_curve as spline_curve
from softmax_jax.temperature.fitting import CANDIDATES as CANDIDATES
from softmax_jax.temperature.fitting import Candidate as Candidate
from softmax_jax.temperature.fitting import TemperatureFit as TemperatureFit
from softmax_jax.temperature.fitting import bootstrap as bootstrap
from softmax_jax.temperature.fitting import cross_validate as cross_validate
from softmax_jax.temperature.fitting import fit as fit
from softmax_jax.temperature.optimum import GRID_SIZE as GRID_SIZE
from softmax_jax.temperature.optimum import LOG_THETA as LOG_THETA
from softmax_jax.temperature.optimum import SPACING as SPACING
from softmax_jax.temperature.optimum import THETA_RANGE as THETA_RANGE
from softmax_jax.temperature.optimum import TIE as TIE
from softmax_jax.temperature.optimum import Rows as Rows
from softmax_jax.temperature.optimum import golden_section as golden_section
from softmax_jax.temperature.optimum import join as join
from softmax_jax.temperature.optimum import search as search
