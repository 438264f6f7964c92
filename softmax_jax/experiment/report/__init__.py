"""Tables and charts of what was measured, and pages of them."""
