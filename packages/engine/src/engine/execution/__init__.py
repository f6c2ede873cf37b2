"""How a forward pass runs: input batch, buffers, runners."""
