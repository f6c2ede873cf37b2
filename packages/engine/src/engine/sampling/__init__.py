"""From logits to tokens: the sampler as a list of steps, each step's per-row state, logprobs."""
