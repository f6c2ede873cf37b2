"""pagoda-kernels."""
