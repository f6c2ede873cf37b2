"""Configuration: one frozen dataclass per group, composed once, resolved once."""
