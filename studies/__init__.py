"""Studies of the documentation, one script each: python -m studies.NAME."""
