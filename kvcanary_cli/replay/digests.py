"""Byte hashes that a recorder observed in the real pool, compared with each other.

The first digest of a slot and source after its last write is its reference; a later, different one means that
bytes changed and nobody recorded it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.runtime.calls import IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class DigestMismatch:
    """Bytes of a slot that changed without a recorded write."""

    step: int
    since_step: int
    group: str
    slot: int
    source: str
    stored: str
    expected: str


class Digests:
    """References by source, group and slot; writes make them void."""

    def __init__(self) -> None:
        self._reference: dict[tuple[str, str], dict[int, tuple[str, int]]] = {}

    def written(self, group: str, slots: IntArray) -> None:
        """Recorded writes: the next digest of these slots is a new reference."""
        for (_, of_group), known in self._reference.items():
            if of_group == group and known:
                for slot in slots.tolist():
                    known.pop(slot, None)

    def observe(
        self, group: str, source: str, slots: IntArray, hashes: list[str], step: int
    ) -> list[DigestMismatch]:
        """Compare a digest with its references; returns what changed."""
        known = self._reference.setdefault((source, group), {})
        found = []
        for slot, text in zip(slots.tolist(), hashes, strict=True):
            value = f"0x{int(text, 16):016x}"
            reference = known.get(slot)
            if reference is not None and reference[0] != value:
                found.append(
                    DigestMismatch(
                        step=step,
                        since_step=reference[1],
                        group=group,
                        slot=slot,
                        source=source,
                        stored=value,
                        expected=reference[0],
                    )
                )
            known[slot] = (value, step)
        return found

    def forget(self) -> None:
        """A gap: references from before it say nothing."""
        self._reference.clear()
