"""The laws that every normalizer obeys, their checker, and vectors for programs in other languages."""
