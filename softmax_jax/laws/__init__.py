"""What every normalizer promises: the laws, their checker, and vectors for programs in other languages."""
