"""Tables and charts of what was measured."""

from typing import Literal

Paper = Literal["one-column", "two-column"]
"""What a chart for print is as wide as."""
