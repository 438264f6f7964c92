"""CLRS-Text: algorithms asked and answered in text."""
