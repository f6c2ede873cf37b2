"""Ranges that settings share, as annotations: checked where configuration enters, and shown in help.

Knows nothing of any one setting. A dataclass constructor does not check them; the door does.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

DtypeName = Literal["auto", "bfloat16", "float16", "float32"]
