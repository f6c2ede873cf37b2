"""pagoda-engine."""
