"""The list of breaches: each once, however often the same thing happens again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kvcanary_cli.ledger import columns as c
from kvcanary_cli.ledger.names import Names
from kvcanary_cli.ledger.records import Breach, IntArray
from kvcanary_cli.ledger.slot_table import SlotTable

Where = tuple[int, int]  # step, line

# Breaches that are kept; a trace that breaks every rule at every step is told by its first thousands.
MOST_KEPT = 20_000


class BreachLog:
    """Breaches in order of discovery.

    The same rule, actor, row and slots in the same epoch are the same breach: it is counted in `facts["repeats"]`.

    Args:
        names: of all holders.
        unjudged: rules that this trace can't be judged by; their breaches are dropped.

    Attributes:
        breaches: the first `MOST_KEPT`; dropped: how many came after them.
    """

    def __init__(self, names: Names, unjudged: Collection[str] = ()) -> None:
        self.breaches: list[Breach] = []
        self.dropped = 0
        self.names = names
        self._unjudged = frozenset(unjudged)
        self._known: dict[tuple[object, ...], Breach] = {}

    def add(
        self,
        rule: str,
        where: Where,
        table: SlotTable,
        slots: Iterable[int] | IntArray,
        *,
        actor: str | None = None,
        victims: Iterable[str] = (),
        row: int | None = None,
        positions: tuple[int, int] | None = None,
        facts: dict[str, object] | None = None,
        once_for: object = None,
    ) -> Breach | None:
        """Record a breach; returns it or the earlier one that it repeats, None if the rule is not judged.

        `once_for` takes the place of row, slots and epoch where a breach lasts although its slots change.
        """
        if rule in self._unjudged:
            return None
        array: IntArray = np.unique(
            np.asarray(slots if isinstance(slots, np.ndarray) else list(slots), np.int64)
        )
        first = int(array[0]) if array.size else -1
        epoch = int(table.slots[first, c.EPOCH]) if 0 <= first < table.num_slots else 0
        key = (rule, table.kind, actor, *((row, epoch, array.tobytes()) if once_for is None else (once_for,)))
        if len(self.breaches) >= MOST_KEPT and key not in self._known:
            self.dropped += 1
            return None
        if key in self._known:
            known = self._known[key]
            self.repeat(known)
            return known
        breach = Breach(
            rule=rule,
            step=where[0],
            line=where[1],
            group=table.kind,
            slots=array,
            actor=actor,
            victims=tuple(dict.fromkeys(name for name in victims if name != actor)),
            row=row,
            positions=positions,
            facts={**(facts or {}), "repeats": 0},
        )
        self._known[key] = breach
        self.breaches.append(breach)
        return breach

    @staticmethod
    def repeat(breach: Breach) -> None:
        """The same breach once more."""
        repeats = breach.facts["repeats"]
        breach.facts["repeats"] = repeats + 1 if isinstance(repeats, int) else 1
