"""The engine core: its loop, its process, and the clients that speak with it."""
