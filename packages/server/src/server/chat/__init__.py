"""From chat messages to a prompt, and from outputs to chat answers."""
