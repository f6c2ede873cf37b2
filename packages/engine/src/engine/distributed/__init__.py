"""Process groups by axis, and the arithmetic of who holds which part of a tensor."""
