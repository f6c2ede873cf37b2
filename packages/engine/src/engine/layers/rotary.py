"""Rotary position embedding: frequencies by the scaling methods that checkpoints name, and one table.

The table covers every position that can occur, so a step only looks up lines. It is kept in float32 whatever
the model's dtype. Letters: T tokens, H query heads, K kv heads, D head size, P positions, R rotary dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import kernels
import torch
from torch import nn

from engine.types.errors import CheckpointError

_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSettings:
    """What a checkpoint says of its positions, whichever generation of keys it uses."""

    kind: str
    """`default`, `linear`, `dynamic`, `llama3` or `yarn`."""
    theta: float
    rotary_dim: int
    """Features of a head that rotate."""
    max_position_embeddings: int
    """Positions that the checkpoint was made for, extension included."""
    scaling: Mapping[str, Any]  # numbers under the method's own names, as the checkpoint has them

    def number(self, name: str, default: float | None = None) -> float:
        """Return one of the method's numbers.

        Raises:
            CheckpointError: it is missing and has no default, or is not a number.
        """
        value = self.scaling.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"rope scaling {self.kind!r}: {name}={value!r}; a number is needed.")
        return float(value)


def read_rope(config: Mapping[str, Any], head_size: int) -> RopeSettings:
    """Return the settings from a checkpoint's configuration.

    Both generations of keys are understood: `rope_theta` with `rope_scaling` beside it, and one
    `rope_parameters` that holds all.

    Raises:
        CheckpointError: the scaling method is not known, or a value is not usable.
    """
    parameters = config.get("rope_parameters") or {}
    scaling = {**(config.get("rope_scaling") or {}), **parameters}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in _METHODS:
        raise CheckpointError(
            f"rope scaling {kind!r} is not supported; known are {', '.join(sorted(_METHODS))}."
        )
    theta = scaling.get("rope_theta") or config.get("rope_theta") or _DEFAULT_THETA
    share = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    rotary_dim = int(head_size * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise CheckpointError(
            f"head_dim={head_size} with partial_rotary_factor={share!r} gives {rotary_dim} rotary features; "
            "an even number is needed."
        )
    max_position_embeddings = int(config.get("max_position_embeddings") or 0)
    # Some checkpoints keep the length before extension beside the scaling and not in it.
    original = config.get("original_max_position_embeddings") or scaling.get(
        "original_max_position_embeddings"
    )
    return RopeSettings(
        kind=kind,
        theta=float(theta),
        rotary_dim=rotary_dim,
        max_position_embeddings=max_position_embeddings,
        scaling={**scaling, "original_max_position_embeddings": original or max_position_embeddings},
    )


def compute_inverse_frequencies(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    """Return ([R / 2] float32, factor on cosines and sines).

    Args:
        max_position: number of positions that can occur here.
    """
    return _METHODS[settings.kind](settings, max_position)


class RotaryEmbedding(nn.Module):
    """The table of one model and the op that applies it; shared by all layers.

    Args:
        max_position: number of positions that can occur.
        is_neox: rotate the halves of a head against each other; otherwise neighbouring features.
    """

    def __init__(
        self,
        settings: RopeSettings,
        *,
        head_size: int,
        max_position: int,
        device: torch.device,
        is_neox: bool = True,
    ) -> None:
        super().__init__()
        self.head_size = head_size
        self.is_neox = is_neox
        # Made on the CPU wherever the model lives: devices differ in the last bits of a power.
        with torch.device("cpu"):
            inverse_frequencies, factor = compute_inverse_frequencies(settings, max_position)
            angles_PF = torch.arange(max_position, dtype=torch.float32)[:, None] * inverse_frequencies
            table_PR = torch.cat([angles_PF.cos(), angles_PF.sin()], dim=-1) * factor
        # A plain attribute: module look-ups are slow, and it belongs to no checkpoint.
        self.cos_sin_cache_PR = table_PR.to(device)

    def forward(self, positions_T: torch.Tensor, query_TX: torch.Tensor, key_TX: torch.Tensor) -> None:
        """Rotate. Shapes: query [T, H*D], key [T, K*D]. Mutates: query, key."""
        kernels.rotary_embedding(
            positions_T, query_TX, key_TX, self.cos_sin_cache_PR, self.head_size, self.is_neox
        )


def _plain(settings: RopeSettings, theta: float | None = None) -> torch.Tensor:
    exponents = torch.arange(0, settings.rotary_dim, 2, dtype=torch.float32) / settings.rotary_dim
    return 1.0 / ((settings.theta if theta is None else theta) ** exponents)


def _default(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    return _plain(settings), 1.0


def _linear(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    return _plain(settings) / settings.number("factor"), 1.0


def _dynamic(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    """Raise theta with the length.

    The longest length that can occur decides, once: keys in the cache were rotated with one theta and must be
    read with the same, whichever request came first.
    """
    trained = settings.max_position_embeddings or max_position
    length = max(max_position, trained)
    factor, dim = settings.number("factor"), settings.rotary_dim
    growth = factor * length / trained - (factor - 1)
    # Two features have no exponent to stretch.
    theta = settings.theta * growth ** (dim / (dim - 2)) if dim > 2 else settings.theta
    return _plain(settings, theta), 1.0


def _llama3(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    """Stretch long wavelengths by the factor, keep short ones, blend between.

    Source: the rope scaling of Llama 3.1 as its release documents it.
    """
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor", 1.0), settings.number("high_freq_factor", 4.0)
    original = settings.number("original_max_position_embeddings")
    if high == low:
        raise CheckpointError(
            f"rope scaling 'llama3': high_freq_factor={high} must differ from low_freq_factor."
        )
    frequencies = _plain(settings)
    wavelengths = 2 * math.pi / frequencies
    share_kept = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / factor + share_kept * frequencies, 1.0


def _yarn(settings: RopeSettings, max_position: int) -> tuple[torch.Tensor, float]:
    """Interpolate features that turn seldom within the trained length, keep those that turn often.

    Source: YaRN (Peng et al., 2023), section 3.2 (ramp by parts) and 3.4 (attention factor).
    """
    original = settings.number("original_max_position_embeddings")
    factor = settings.number("factor", settings.max_position_embeddings / original)
    dim = settings.rotary_dim
    low = _yarn_feature(settings.number("beta_fast", 32.0), settings, original)
    high = _yarn_feature(settings.number("beta_slow", 1.0), settings, original)
    if settings.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (max(high - low, 0) or 0.001)
    share_stretched = ramp.clamp(0.0, 1.0)
    frequencies = _plain(settings)
    blended = frequencies / factor * share_stretched + frequencies * (1 - share_stretched)
    return blended, _yarn_attention_factor(settings, factor)


def _yarn_feature(turns: float, settings: RopeSettings, original: float) -> float:
    """Return the feature pair, as a fraction, that turns this often within the trained length."""
    return settings.rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(settings.theta))


def _yarn_attention_factor(settings: RopeSettings, factor: float) -> float:
    if settings.scaling.get("attention_factor") is not None:
        return settings.number("attention_factor")
    mscale, mscale_all = settings.scaling.get("mscale"), settings.scaling.get("mscale_all_dim")
    if mscale and mscale_all:
        return _yarn_mscale(factor, float(mscale)) / _yarn_mscale(factor, float(mscale_all))
    return _yarn_mscale(factor, 1.0)


def _yarn_mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


_METHODS: dict[str, Callable[[RopeSettings, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
