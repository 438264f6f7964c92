"""Tables and charts of what was measured."""

from typing import Literal

Paper = Literal["one-column", "two-column"]
"""Widths that a chart can be printed in."""
