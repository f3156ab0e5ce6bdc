"""Numbers of the canary contract that all three implementations share.

Source: SGLang 0.5.23's `kv_canary`, as pinned by the vectors in `tests/golden`.
"""

from __future__ import annotations

from enum import IntEnum

ANCHOR = 0xC0FFEE1234567890  # a chain starts at mix(ANCHOR)

STAMP_WORDS = 4  # int64 words of a stamp
STAMP_BYTES = 32
WORD_TOKEN, WORD_POSITION, WORD_PREV_HASH, WORD_KV_HASH = range(STAMP_WORDS)

RING_WORDS = 8  # int64 words of a violation row
(
    RING_TAG,
    RING_SLOT,
    RING_POSITION,
    RING_STORED_TOKEN,
    RING_EXPECTED_TOKEN,
    RING_STORED_PREV_HASH,
    RING_AUX,
    RING_BITS,
) = range(RING_WORDS)

BIT_CHAIN_HASH = 1
BIT_POSITION = 2
BIT_KV_HASH = 4
BIT_WRITE_TOKEN = 8
BIT_WRITE_POSITION = 16
BIT_VERIFY_TOKEN = 32
BIT_OUT_OF_RANGE = 64  # ours: a slot index outside the buffer is reported instead of followed

BIT_NAMES = {
    BIT_CHAIN_HASH: "chain_hash",
    BIT_POSITION: "position",
    BIT_KV_HASH: "real_kv_hash",
    BIT_WRITE_TOKEN: "write_token",
    BIT_WRITE_POSITION: "write_position",
    BIT_VERIFY_TOKEN: "verify_token",
    BIT_OUT_OF_RANGE: "slot_out_of_range",
}

PARTIAL_BYTES = 16  # what HashMode.PARTIAL reads of each source

# Limits of the server's kernels. Ours have none; the audit and replay report them.
SERVER_PLAN_LANES = 4096
SERVER_SCATTER_BATCH_BLOCK = 512
SERVER_MAX_SOURCES = 4


class HashMode(IntEnum):
    """How much of each byte source a stamp's byte hash covers."""

    NONE = 0
    PARTIAL = 1
    ALL = 2


class LaunchTag(IntEnum):
    """Which launch a violation comes from: phase, half of the KV pair, group."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11


def bit_names(bits: int) -> list[str]:
    """Names of the reason bits that are set, lowest bit first."""
    return [name for bit, name in BIT_NAMES.items() if bits & bit]
