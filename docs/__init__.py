"""The pages of the documentation, and what builds those that are made from code."""
