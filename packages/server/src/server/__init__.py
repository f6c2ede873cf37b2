"""pagoda-server."""
