"""Codes and names of every kind of fault. An id is never reused, new ones go at the end.

Names say what is wrong, not what to do. Integrity kinds (K) are causes of damage to KV slots, capacity kinds (C)
are limits that a forward exceeds.
"""

from __future__ import annotations

KINDS: dict[str, str] = {
    "K01": "dual-owner",
    "K02": "double-free",
    "K03": "stale-mapping",
    "K04": "early-shared-release",
    "K05": "write-to-shared",
    "K06": "inflight-write-after-free",
    "K07": "late-remote-write",
    "K08": "store-source-race",
    "K09": "reload-race",
    "K10": "table-changed-midflight",
    "K11": "leftover-tail",
    "K12": "address-mixup",
    "K13": "boundary-arithmetic",
    "K14": "window-mismatch",
    "K15": "pad-lane-write",
    "K16": "rollback-slip",
    "K17": "position-drift",
    "K18": "wrong-input-token",
    "K19": "uncomputed-prefix",
    "K20": "key-collision",
    "K21": "unattributed-bytes",
    "K22": "torn-transfer",
    "K23": "missing-sidecar",
    "K24": "dtype-scale",
    "K25": "geometry-mismatch",
    "K26": "overlay-restore",
    "C1": "batch-limit",
    "C2": "token-limit",
    "C3": "draft-multiplier",
    "C4": "verify-blackout",
    "C5": "row-width",
    "C6": "address-range",
    "C7": "report-saturation",
}

STREAM_KINDS: dict[str, str] = {
    "S01": "removed-unknown",
    "S02": "removed-parent",
    "S03": "unknown-parent",
    "S04": "page-hash",
    "S05": "two-contents",
    "S06": "token-count",
    "S07": "block-size-change",
    "S08": "use-after-clear",
    "S09": "lost-batches",
    "S10": "number-backwards",
    "S11": "over-pool",
}
"""What a stream of KV events shows (S). S09 is a gap in what was seen, no finding."""


def title(code: str) -> str:
    """`K07 late-remote-write`."""
    return f"{code} {KINDS[code]}"
