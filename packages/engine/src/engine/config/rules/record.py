"""What was decided so far and why, and what turned out to have no effect."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config.engine_config import Reason


@dataclass(slots=True)
class Record:
    """Collects decisions while `resolve` runs; its lists end in the resolved configuration."""

    reasons: list[Reason] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def decide(self, key: str, value: object, given: object, why: str) -> None:
        """Note that a key which said `given` became `value`."""
        self.reasons.append(Reason(key=key, value=as_text(value), given=as_text(given), why=why))

    def ignore(self, key: str, value: object, why: str) -> None:
        """Note that a setting has no effect."""
        self.warnings.append(f"{key}={as_text(value)} has no effect: {why}.")


def as_text(value: object) -> str:
    """Return a value as configuration writes it."""
    return "null" if value is None else str(value)
