"""pagoda-parsers."""
