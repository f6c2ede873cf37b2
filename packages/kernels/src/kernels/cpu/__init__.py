"""The CPU's fast path: C++ compiled once for this very processor, and loaded into torch."""
