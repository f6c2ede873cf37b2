"""Platforms: every question about the machine and its devices is asked here."""
