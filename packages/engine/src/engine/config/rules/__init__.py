"""One module per question that `resolve` decides; each is pure and records its reasons."""
