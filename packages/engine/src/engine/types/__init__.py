"""The engine's vocabulary: data only, no behaviour beyond validation, no torch."""
