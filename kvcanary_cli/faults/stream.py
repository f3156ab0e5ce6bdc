"""A stream of events that planters edit, and what they say of the fault that they left in it.

A planter works in two halves. The first inserts *dress*: legal machinery (a further request, an offload and a
reload, …) that a clean run could have had. The second does the damage. Events stand in cells, so that a place
stays the same place when events are inserted before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from kvcanary_cli.errors import InputError
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.places import Step, Survey, survey
from kvcanary_cli.trace import events as ev

T = TypeVar("T")

MAX_LOOKS = 48  # places that are looked at closely; each needs the state at that point
WARM_UP = 8  # a fault comes after 1/8 of the forwards at the earliest, and at least two
COOL_DOWN = 6  # and leaves the last 1/6 of them alone, at least two, so that it can be seen
SMALL_UNIT = 8  # slots that faults deal in where pages are smaller


class NotApplicable(InputError):
    """The trace has no place for a kind of fault; the message says what it lacks."""


class Cell:
    """One event of a stream; it stays when events are put before or after it."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event


@dataclass(kw_only=True, slots=True)
class Fault:
    """What a planter did.

    Attributes:
        slots: those whose KV is wrong; with `is_damaged` False those that the incident must name.
        at: the event that does the damage (or, without damage, breaks the rule).
        rid: whose slots they were.
        writer: who did it.
        found: the event at which replay must have noticed; None: the next check of one of the slots.
        group: buffer group of `slots`.
        hits_window: whether the window slots of `slots` are wrong too, in a hybrid pool.
        involved: further requests that take part, so that naming them is no mistake.
        side: slots that are right, and that an incident may name all the same.
        also: further kinds by which the effect may be called.
        variant: which of its forms the planter chose.
    """

    slots: Sequence[int]
    at: Cell
    rid: str | None = None
    writer: str | None = None
    found: Cell | None = None
    is_damaged: bool = True
    group: str = "full"
    hits_window: bool = True
    involved: Sequence[str] = ()
    side: Sequence[int] = ()
    also: Sequence[str] = ()
    variant: str | None = None
    kind: str = ""


Planter = Callable[["Stream"], Generator[None, None, Fault]]


@dataclass(slots=True)
class _Edits:
    before: list[Cell] = field(default_factory=list)
    after: list[Cell] = field(default_factory=list)


class Stream:
    """Events of one trace while faults are planted in it.

    Attributes:
        header: may be replaced.
        rng: source of every choice; a planter is started with a seed.
        used: slots of earlier faults, which later ones leave alone; `used_rids` likewise.
        guests: requests that the present planter added.
    """

    def __init__(self, header: ev.Header, events: Iterable[ev.Event]) -> None:
        self.header = header
        self.cells = [Cell(event) for event in events]
        self.rng = random.Random()
        self.used: set[int] = set()
        self.used_rids: set[str] = set()
        self._edits: dict[int, _Edits] = {}
        self._dropped: set[int] = set()
        self._survey: Survey | None = None
        self._names: set[str] = set()
        self._rows: set[int] = set()
        self.guests: list[Any] = []

    @property
    def unit(self) -> int:
        """Slots that faults deal in: a page, or a few of them where pages are small."""
        size = self.header.pool.page_size
        return -(-SMALL_UNIT // size) * size if size < SMALL_UNIT else size

    @property
    def has_window(self) -> bool:
        """Whether full slots have window slots of their own."""
        return self.header.group("swa") is not None

    @property
    def survey(self) -> Survey:
        """Steps and sessions of the stream as it was before the present planter."""
        if self._survey is None:
            self._survey = survey(self.header, self.events())
        return self._survey

    def events(self) -> list[Any]:
        """The events as they stand; edits count after `commit`."""
        return [cell.event for cell in self.cells]

    def cell(self, step: Step) -> Cell:
        """The cell of a forward."""
        return self.cells[step.index]

    def new_name(self, what: str) -> str:
        """A name that the trace does not use yet: `what`, `what-2`, …"""
        known = self.survey.names | self._names
        name, number = what, 1
        while name in known:
            number += 1
            name = f"{what}-{number}"
        self._names.add(name)
        return name

    def spare_row(self, begin: int, end: int) -> int:
        """A row without a request between two places; the table gets one more where there is none."""
        busy = {s.row for s in self.survey.sessions if s.begin <= end and s.end >= begin} | self._rows
        pool = self.header.pool
        row = next((row for row in range(1, pool.rows) if row not in busy), pool.rows)
        if row == pool.rows:
            self.header = replace(self.header, pool=replace(pool, rows=row + 1))
        self._rows.add(row)
        return row

    def before(self, cell: Cell, *events: ev.Event) -> list[Cell]:
        """Put events before a cell, after what was put there earlier."""
        cells = [Cell(event) for event in events]
        self._edits.setdefault(id(cell), _Edits()).before.extend(cells)
        return cells

    def after(self, cell: Cell, *events: ev.Event) -> list[Cell]:
        """Put events after a cell, after what was put there earlier."""
        cells = [Cell(event) for event in events]
        self._edits.setdefault(id(cell), _Edits()).after.extend(cells)
        return cells

    def drop(self, *cells: Cell) -> None:
        """Take events out."""
        self._dropped.update(id(cell) for cell in cells)

    def commit(self) -> None:
        """Put all edits into the stream."""
        done: list[Cell] = []
        for cell in self.cells:
            self._emit(cell, done)
        self.cells = done
        self._forget_edits()
        self._survey = None

    def start(self, seed: str) -> None:
        """Seed the choices of the next planter."""
        self.rng = random.Random(seed)

    def is_used(self, rid: str) -> bool:
        """Whether a request plays a part in an earlier fault, or was added for one."""
        return rid in self.used_rids or rid in self._names

    def avoid(self, fault: Fault) -> None:
        """Keep later planters away from this fault."""
        self.used.update(int(slot) for slot in (*fault.slots, *fault.side))
        self.used_rids.update(name for name in (fault.rid, fault.writer, *fault.involved) if name)

    def _forget_edits(self) -> None:
        self._edits.clear()
        self._dropped.clear()
        self._rows.clear()
        self.guests.clear()

    def _emit(self, cell: Cell, done: list[Cell]) -> None:
        edits = self._edits.get(id(cell))
        if edits is None:
            done += [cell] * (id(cell) not in self._dropped)
            return
        for other in edits.before:
            self._emit(other, done)
        done += [cell] * (id(cell) not in self._dropped)
        for other in edits.after:
            self._emit(other, done)

    def middle(self) -> list[Step]:
        """Forwards late enough for a history and early enough for the damage to be seen."""
        steps = self.survey.steps
        first = max(2, len(steps) // WARM_UP)
        last = len(steps) - max(2, len(steps) // COOL_DOWN)
        return steps[first:last]

    def visit(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Ownership]]:
        """The state right before each of these forwards, in order; it goes on when the next one is asked for."""
        state, at = Ownership(self.header), 0
        for step in sorted(steps, key=lambda step: step.index):
            for cell in self.cells[at : step.index]:
                state.apply(cell.event)
            at = step.index
            yield step, state

    def state_before(self, cell: Cell) -> Ownership:
        """The state right before a cell of the stream as it was before the present planter."""
        state = Ownership(self.header)
        for other in self.cells:
            if other is cell:
                break
            state.apply(other.event)
        return state

    def pick(
        self, steps: Sequence[Step], find: Callable[[Step, Ownership], Sequence[T]], lack: str
    ) -> tuple[Step, T]:
        """One of the places that `find` sees right before some of `steps`, drawn by step and then by place.

        Raises: NotApplicable with `lack` as the reason.
        """
        looks = self.rng.sample(steps, min(MAX_LOOKS, len(steps)))
        found = [(step, options) for step, state in self.visit(looks) if (options := find(step, state))]
        if not found:
            raise NotApplicable(lack)
        step, options = self.rng.choice(found)
        return step, self.rng.choice(options)
