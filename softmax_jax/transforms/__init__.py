"""Find, swap, probe and calibrate the softmaxes of any JAX function."""
