"""From prompts as they came to sequences, and from outputs to text completions."""
