"""Token ids that nobody recorded, as the trace format makes them up, and the 64-bit mixing behind it.

`mix` is the canary's mixer (splitmix64's finaliser, without the increment) on any number; its contract is
`kernels/hashing_ref.py`. Needs neither numba nor torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

VOCABULARY = 151_936  # ids are drawn from this many
MASK = (1 << 64) - 1
_FACTOR_1, _FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3

WordArray = npt.NDArray[np.uint64]


def mix(value: int) -> int:
    """The mixer on one number, taken modulo 2^64."""
    value &= MASK
    value = (value ^ (value >> 30)) * _FACTOR_1 & MASK
    value = (value ^ (value >> 27)) * _FACTOR_2 & MASK
    return value ^ (value >> 31)


def mix_all(values: WordArray) -> WordArray:
    """`mix` of each element."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FACTOR_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_FACTOR_2)
    return values ^ (values >> np.uint64(31))


def fnv1a64(text: str) -> int:
    """64-bit FNV-1a of the UTF-8 bytes of `text`."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & MASK
    return value


def made_up_tokens(base: int, positions: WordArray) -> npt.NDArray[np.int64]:
    """`mix(base ^ position) mod 151936`, elementwise; `base` is `fnv1a64` of the request's name."""
    return (mix_all(np.uint64(base) ^ positions) % np.uint64(VOCABULARY)).astype(np.int64)
