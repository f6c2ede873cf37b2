"""Text in and text out: prompts to token ids, token ids to text, chat templates. No torch, no HTTP."""
