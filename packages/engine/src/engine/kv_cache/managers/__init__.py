"""One manager per kind of cache: how many blocks a row needs and which may be reused."""
