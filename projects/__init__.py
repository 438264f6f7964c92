"""What is built on the package and stands beside it: CLRS-Text, and the decoder that learns it."""
