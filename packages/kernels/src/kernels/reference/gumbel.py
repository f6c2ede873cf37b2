"""Gumbel noise as a pure function of (seed, position, token id), the same bits on every device.

The integers are the splitmix64 stream whose state is a hash of seed and position. The floats are defined by
single float32 operations, each rounded once and none fused, so that any implementation that keeps the order
below gives the same bits, hence the same token. It knows nothing of logits.

Letters: B rows, V vocabulary.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), the mixing constants.
"""

from __future__ import annotations

import math

import torch


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_LN2_HIGH = 0.693145751953125  # 16 bits, so that exponent * high is exact
_LN2_LOW = math.log(2) - _LN2_HIGH
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def compute_gumbel_noise(seeds_B: torch.Tensor, positions_B: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return noise_BV, float32: -log(-log(1 - u)) with u uniform on (0, 1).

    u keeps the full relative precision of float32 near 0, where the largest noise comes from, so that even
    tokens of tiny probability are drawn as often as they should be.
    """
    row_keys_B1 = _mix(_mix(seeds_B.long()) + positions_B.long() * _GOLDEN)[:, None]
    counters_V = torch.arange(1, vocab_size + 1, device=seeds_B.device) * _GOLDEN
    hashes_BV = _mix(row_keys_B1 + counters_V)
    # 63 bits, made odd: never 0. The conversion rounds to nearest.
    uniform_BV = (_shift_right(hashes_BV, 1) | 1).float() * 2.0**-63
    uniform_BV = uniform_BV.clamp(max=_LARGEST_BELOW_ONE)
    return -_log(_exponential(uniform_BV))


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    # torch shifts int64 arithmetically; the mask makes it logical.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _exponential(u: torch.Tensor) -> torch.Tensor:
    """Return -log(1 - u), by the series in u / (2 - u) where u is small and 1 - u would lose its bits."""
    return torch.where(u < 0.25, _two_atanh(u / (2.0 - u)), -_log(1.0 - u))


def _log(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32)
    # Take the exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)).
    shifted = bits - 0x3F3504F3
    exponent = (shifted >> 23).float()
    mantissa = ((shifted & 0x007FFFFF) + 0x3F3504F3).view(torch.float32)
    series = _two_atanh((mantissa - 1.0) / (mantissa + 1.0))
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + series)


def _two_atanh(s: torch.Tensor) -> torch.Tensor:
    """Return 2 atanh(s) for |s| < 0.18: 2s + s * (2/3 s^2 + 2/5 s^4 + 2/7 s^6 + 2/9 s^8)."""
    z = s * s
    tail = z * (2 / 9) + (2 / 7)
    tail = z * tail + (2 / 5)
    tail = z * tail + (2 / 3)
    return s * (z * tail) + s * 2.0
