"""Tables and charts of what was measured."""
