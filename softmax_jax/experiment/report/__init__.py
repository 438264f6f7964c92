"""Tables and charts of what was measured, and pages of them."""

from softmax_jax.refusal import require

require("a chart or a page", "altair", "jinja2", "polars", "rich", "scipy", "vl_convert")
