"""Arguments and results of a run's operations, the same for every backend."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCall:
    """One decoded forward.

    Attributes:
        rows, prefix, lens: [num_lanes] int64; row 0 is a padded lane, and those come last.
        tokens, positions, slots: [sum(lens)] int64 in lane order, padded lanes included; slot -1 is skipped.
        expected_tokens: [sum(lens)] int64, or None when there is no expectation.
        expected_positions: [sum(lens)] int64, given together with `expected_tokens`.
        valid_lens: [num_lanes] int64, how far each row's expected tokens reach; None: none are known.
        chain_positions: whether written positions must follow each other.
        byte_salt: mixed into the bytes that this forward writes.
        pad_slots, pad_contexts: slots whose bytes alone are written after the lanes' own, and what those
            bytes are made from ([n] int64, [n] uint64).
    """

    rows: IntArray
    prefix: IntArray
    lens: IntArray
    tokens: IntArray
    positions: IntArray
    slots: IntArray
    expected_tokens: IntArray | None = None
    expected_positions: IntArray | None = None
    valid_lens: IntArray | None = None
    chain_positions: bool = True
    byte_salt: int = 0
    pad_slots: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    pad_contexts: WordArray = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def num_live_entries(self) -> int:
        """Written tokens of lanes that are not padded."""
        return int(self.lens[self.rows != 0].sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepCall:
    """Entries of the prefix cache of one group: [n] int64 each; predecessor -1 is the head of a chain."""

    slots: IntArray
    positions: IntArray
    predecessors: IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCopy:
    """Bytes and stamps of some slots, outside of the pool.

    Attributes:
        group: the group whose slots were copied.
        kv: source number -> [n, bytes_per_slot] uint8.
        stamps: (phase, half) -> [n, 4] int64.
    """

    group: str
    kv: dict[int, npt.NDArray[np.uint8]]
    stamps: dict[tuple[str, str], IntArray]

    @property
    def num_slots(self) -> int:
        return int(next(iter(self.stamps.values())).shape[0])
