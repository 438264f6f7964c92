"""Reads and checks the file of a temperature fit."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from softmax_jax.files import exists, read_json
from softmax_jax.normalizers.checks import shown
from softmax_jax.refusal import Refusal

KEYS = ("coefficients", "entropy_range", "criterion", "lengths", "seeds", "versions", "checkpoint_sha256", "sha256")
LARGEST_BETA = 64.0
"""No fit searches beyond this inverse temperature, so no polynomial should go there within its own range."""
LARGEST_DEGREE = 10
LARGEST_FILE = 2**20
"""The most bytes of a fit's file."""


def fitted_numbers(path: str) -> dict[str, tuple[float, ...]]:
    """Returns the numbers that a fit's file holds, as the entropy polynomial takes them. Raises as `read_fit`."""
    content = read_fit(Path(path))
    return {name: tuple(map(float, content[name])) for name in ("coefficients", "entropy_range")}


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a fit with the SHA-256 of all of it, which a reader checks.

    >>> signed({"degree": 4})["sha256"][:8]
    '1d13e6ff'
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_fit(path: Path) -> dict[str, Any]:
    """Returns the content of a fit's file, less its checksum.

    Raises ValueError, in one line, for a file that is missing, is no valid fit, or is not as it was written.
    """
    if not exists(path):
        raise Refusal(f"{path} does not exist: name a file that fit_temperature.py wrote")
    try:
        content = read_json(path, limit=LARGEST_FILE)
    except Refusal as refusal:
        raise Refusal(f"{refusal}; run fit_temperature.py anew") from None
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise Refusal(f"{path} is no temperature fit: it lacks {', '.join(missing)}; run fit_temperature.py anew")
    sha256 = content.pop("sha256")
    if signed(content)["sha256"] != sha256:
        raise Refusal(
            f"{path} is not as it was written: its sha256 is that of other content; run "
            "fit_temperature.py anew, or restore it from a copy"
        )
    check_polynomial(str(path), content)
    return content


def check_polynomial(name: str, content: dict[str, Any]) -> None:
    """Raises ValueError unless a fit could have given the polynomial, over its own range of entropies."""
    coefficients, entropy_range = content["coefficients"], content["entropy_range"]
    for key in ("coefficients", "entropy_range"):
        numbers = content[key]
        if not are_finite_numbers(numbers):
            raise Refusal(f"{name}: {key} is {shown(numbers)}; it must be a list of finite numbers")
        if len(numbers) > LARGEST_DEGREE + 1:
            raise Refusal(f"{name}: {key} has {len(numbers)} numbers; it must have at most {LARGEST_DEGREE + 1}")
    if len(entropy_range) != 2 or not 0 <= entropy_range[0] < entropy_range[1]:
        raise Refusal(f"{name}: entropy_range is {entropy_range!r}; it must be [low, high], 0 ≤ low < high, in nats")
    entropies = np.linspace(entropy_range[0], entropy_range[1], 1001)
    with np.errstate(over="ignore", invalid="ignore"):
        betas = np.polyval(coefficients, entropies)
    worst = int(np.argmax(np.abs(betas)))  # a NaN if there is one
    if not abs(betas[worst]) <= LARGEST_BETA:
        raise Refusal(
            f"{name}: the polynomial gives β = {betas[worst]:.4g} at H = {entropies[worst]:.3g} nats, within its own "
            f"range, where |β| is at most {LARGEST_BETA:g}: coefficients go highest power first"
        )
    ends: Any = content.get("beta_at_ends")
    are_two = are_finite_numbers(ends) and len(ends) == 2
    if ends is not None and not (are_two and np.allclose(ends, betas[[0, -1]], rtol=1e-6, atol=1e-6)):
        raise Refusal(
            f"{name}: the polynomial gives β = {betas[0]:.4g} and {betas[-1]:.4g} at the ends of its range, and "
            f"beta_at_ends says {shown(ends)}: coefficients go highest power first"
        )


def are_finite_numbers(values: Any) -> bool:
    """Returns True for a list of finite numbers that is not empty."""
    # By a comparison, for an integer may be too large for a float.
    return (isinstance(values, list) and bool(values)) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        for value in values
    )
