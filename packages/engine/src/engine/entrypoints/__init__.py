"""What library users and the server call: `LLM` for whole batches, `AsyncLLM` for streams."""
