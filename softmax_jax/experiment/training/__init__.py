"""Settings, the compiled loop, and a run from its directory to its end."""
