"""What is measured of trained models on fresh sets."""
