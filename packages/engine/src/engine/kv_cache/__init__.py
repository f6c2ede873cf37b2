"""The paged KV cache as bookkeeping: blocks, prefix reuse, the plan of memory. No tensor, no torch."""
