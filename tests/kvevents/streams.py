"""Streams made by hand, and what an audit says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcanary_cli.kvevents.audit import Auditor, AuditResult
from kvcanary_cli.kvevents.lines import EventFile

V09 = "93cb3ff80000000000009196ab426c6f636b53746f7265649101c092050602c000"
V16 = "93cb3ff80000000000009198ab426c6f636b53746f7265649101c092050602c0a3475055c000"
V20 = "93cb3ff8000000000000919aab426c6f636b53746f7265649101c092050602c0a3475055c0c00000"
V24 = (
    "93cb3ff8000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739101b1706172656e745f626c6f636b"
    "5f68617368c0a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f"
    "6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474"
    "656e74696f6e00"
)
SGLANG = (
    "93cb3ff80000000000009287a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391f9b1706172656e745f626c6f636b"
    "5f68617368c0a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da347505581a474797065"
    "b0416c6c426c6f636b73436c656172656400"
)
OLD = (
    "93cb3ff80000000000009396ab426c6f636b53746f7265649101c092050602c092ac426c6f636b52656d6f766564910191b0416c6c426c6f63"
    "6b73436c6561726564c0"
)


def stored(
    hashes: list[Any], parent: Any = None, tokens: list[Any] | None = None, size: int = 2, **more: Any
) -> dict[str, Any]:
    """A store; its tokens follow from the hashes where none are given."""
    if tokens is None:
        tokens = [token for each in hashes for token in range(each * size, each * size + size)]
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        **more,
    }


def removed(hashes: list[Any], **more: Any) -> dict[str, Any]:
    """A removal."""
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def batches(*events: Any, rank: int | None = 0, first: int = 0) -> list[dict[str, Any]]:
    """One batch an event, with numbers; a list is the events of one batch."""
    return [
        {
            "seq": seq,
            "ts": 100.0 + seq,
            "rank": rank,
            "events": event if isinstance(event, list) else [event],
        }
        for seq, event in enumerate(events, first)
    ]


def write(path: Path, lines: list[Any]) -> Path:
    """A file with one JSON value a line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    return path


def audit(path: Path, lines: list[Any], **options: Any) -> AuditResult:
    """The audit of some lines."""
    file = EventFile([str(write(path / "events.jsonl", lines))])
    return Auditor(file, **options).run()


def codes(result: AuditResult) -> list[str]:
    """Codes of the findings in their order."""
    return [finding.code for finding in result.log.findings]
