"""What the ledger hands out: breaches, and what it knows of one slot. Plain values, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

CACHE = "cache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Breach:
    """One event that broke the rules of ownership.

    Attributes:
        rule: stable name of the rule, see `docs/ledger.md`.
        step: forward that ran last before the event, or the forward itself; line: 1-based line of the event.
        group: `full` or `swa`.
        slots: [n] int64, sorted, each once.
        actor: the holder that did it, None when nobody is named.
        victims: other holders of these slots, in the order in which they came.
        row: page-table row, where the rule is about one.
        positions: first and last position concerned, where they are known.
        facts: what the rule found, JSON-able; `repeats` counts later events that broke the same rule again.
    """

    rule: str
    step: int
    line: int
    group: str
    slots: IntArray
    actor: str | None = None
    victims: tuple[str, ...] = ()
    row: int | None = None
    positions: tuple[int, int] | None = None
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """When and by whom something happened to a slot.

    `why`: of an allocation `alloc`, or `share`, `publish`, `hold` when one of these began the epoch; of a release
    `free`, `evict`, `end` (a free that its request ended with), `unmap` (window slots), or `force` (given up by
    somebody who did not hold it).
    """

    step: int
    line: int
    by: str | None
    why: str

    def as_json(self) -> dict[str, object]:
        """The same as facts of a breach keep it."""
        return {"step": self.step, "line": self.line, "by": self.by, "why": self.why}


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """One holder of a slot.

    `epoch` is the slot's epoch in which it came; one that is older than the slot's is stale: the allocator has
    handed the slot to somebody else since. `how`: `alloc`, `share`, `publish`, `hold`, or `map` for window slots.
    """

    name: str
    since_step: int
    since_line: int
    how: str
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Previous:
    """The epoch before the present one: to whom it was allocated, its first and last step."""

    epoch: int
    holder: str | None
    first_step: int
    last_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Who wrote a slot last.

    Attributes:
        name: request, None where the event names nobody.
        how: `forward`, `xfer`, `reload`, `kv`, or `pad` (a padded lane, bytes only).
        in_row: whether the writer's row named the slot at that position; for `kv`, whether the writer held it.
        held: whether the writer held the slot at that time.
        id: id of the transfer, or key of the reload.
        position: position that was written, where the event has one.
    """

    name: str | None
    step: int
    line: int
    how: str
    in_row: bool
    held: bool
    id: str | None
    position: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a request ended last: `done`, `cancel` or `retract`."""

    step: int
    line: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotFacts:
    """Everything the ledger knows of one slot at one moment.

    Attributes:
        epoch: how often the slot left the free state, 0 = never.
        known: False when a gap hides who else may hold the slot.
        holders: in the order in which they came; stale ones included.
        allocated: what began the epoch.
        released: when it became free last, or was released by somebody who did not hold it.
        given_up: when a holder gave it up last, whether others stayed or not.
        is_written: whether anything was written here since its allocation.
        published: whether the prefix cache has an entry on it.
        token: the token written last, None where unknown.
        last_checked_step: the last forward or sweep that verified it as part of a row or of the cache.
    """

    slot: int
    group: str
    epoch: int
    known: bool
    holders: tuple[Holder, ...]
    allocated: Mark | None
    released: Mark | None
    given_up: Mark | None
    previous: Previous | None
    byte_writer: Writer | None
    stamp_writer: Writer | None
    is_written: bool
    published: bool
    token: int | None
    last_checked_step: int | None
