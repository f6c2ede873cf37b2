"""Logs, phases of start-up and statistics: what an operator sees of a running engine."""
