"""Sizes that a run outgrows: C1 to C4."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import accumulate

from msgspec.structs import replace

from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.stream import Cell, Fault, NotApplicable, Stream
from kvcanary_cli.trace import events as ev

MAX_EXCESS = 8
GUEST_UNITS = 3


def batch_limit(stream: Stream) -> Generator[None, None, Fault]:
    """C1: one batch is padded to a graph with more lanes than the write plan has requests.

    A trace that states no `write_req_capacity` gets its largest batch as one.

    Found by: the capacity check of that forward.

    Silent: checks and ledger.
    """
    largest = max((_lanes(cell.event) for cell in _forwards(stream)), default=0)
    limit = _limit(stream, "write_req_capacity", largest)
    middle = stream.middle()
    if not middle:
        raise NotApplicable("it has too few forwards")
    cell = stream.cell(stream.rng.choice(middle))
    yield
    cell.event = replace(cell.event, width=limit + stream.rng.randint(1, MAX_EXCESS))
    return Fault(slots=(), at=cell, found=cell, is_damaged=False)


def token_limit(stream: Stream) -> Generator[None, None, Fault]:
    """C2: a prompt is added to a batch although the write plan has no entries left for its tokens.

    Where no batch comes near the stated `write_entry_capacity`, a smaller one is stated instead.

    Found by: the capacity check of the (first) forward with more tokens.

    Silent: checks and ledger.
    """
    cells = [cell for cell in _forwards(stream) if cell.event.accepted is None]
    largest = max((_tokens(cell.event) for cell in cells), default=0)
    if largest < 2:
        raise NotApplicable("no forward writes more than one token")
    limit = _limit(stream, "write_entry_capacity", largest)
    try:
        scene = find_scene(stream, GUEST_UNITS, steps=1, fits=partial(_comes_near, limit))
    except NotApplicable:
        yield
        cell = _lower(stream, "write_entry_capacity", largest - 1, _tokens)
        return Fault(slots=(), at=cell, found=cell, is_damaged=False, variant="lowered")
    (cell,) = scene.cells
    guest = scene.guest("prompt", GUEST_UNITS)
    guest.enter(scene.before)
    guest.forward(scene.before, limit - _tokens(cell.event) + stream.rng.randint(1, MAX_EXCESS))
    guest.leave(scene.after)
    yield
    stream.drop(guest.forwards.pop())
    count, guest.length = guest.length, 0
    guest.join(cell, count)
    return Fault(slots=(), at=cell, found=cell, is_damaged=False, involved=[guest.rid], variant="added")


def _comes_near(limit: int, scene: Scene, state: Ownership) -> bool:
    """Whether a guest's tokens are too many for the forward of a scene, though not by themselves."""
    room = GUEST_UNITS * scene.stream.unit - MAX_EXCESS
    event = scene.cells[0].event
    return event.accepted is None and limit - room <= _tokens(event) and room < limit


def draft_multiplier(stream: Stream) -> Generator[None, None, Fault]:
    """C3: the write plan was sized without the draft tokens that each lane of a verify writes.

    Prefills are cut into chunks that fit such a plan.

    Found by: the capacity check of the first verify that does not fit.

    Silent: checks and ledger.
    """
    verifies = [cell for cell in _forwards(stream) if cell.event.accepted is not None]
    largest = max((_tokens(cell.event) for cell in verifies), default=0)
    lanes = max((_lanes(cell.event) for cell in _forwards(stream)), default=0)
    limit = max(lanes, largest - 1)
    if largest <= limit:
        raise NotApplicable("no forward verifies more draft tokens than it has lanes")
    for cell in _forwards(stream):
        if cell.event.accepted is None and _tokens(cell.event) > limit:
            cell.event, *more = _chunks(cell.event, limit)
            stream.after(cell, *more)
    yield
    cell = _lower(stream, "write_entry_capacity", limit, _tokens)
    return Fault(slots=(), at=cell, found=cell, is_damaged=False)


def verify_blackout(stream: Stream) -> Generator[None, None, Fault]:
    """C4: the verify plan has fewer entries than the prefixes of a batch, so the server skips that pass.

    Found by: the capacity check of the first such forward.

    Silent: checks and ledger; replay itself verifies all entries.
    """
    records, largest = [], 1
    for cell in _forwards(stream):
        if _entries(cell.event) > largest:
            largest = _entries(cell.event)
            records.append(cell)
    if not records:
        raise NotApplicable("no forward reads a prefix")
    yield
    middle = {id(stream.cell(step)) for step in stream.middle()}
    chosen = stream.rng.choice([cell for cell in records if id(cell) in middle] or records[-1:])
    cell = _lower(stream, "verify_capacity", _entries(chosen.event) - 1, _entries)
    return Fault(slots=(), at=cell, found=cell, is_damaged=False)


def _forwards(stream: Stream) -> list[Cell]:
    return [cell for cell in stream.cells if isinstance(cell.event, ev.Forward)]


def _lanes(forward: ev.Forward) -> int:
    return max(len(forward.rows), forward.width or 0)


def _lens(forward: ev.Forward) -> list[int]:
    return forward.lens if forward.lens is not None else [1] * len(forward.rows)


def _tokens(forward: ev.Forward) -> int:
    return sum(_lens(forward))


def _entries(forward: ev.Forward) -> int:
    return sum(prefix for row, prefix in zip(forward.rows, forward.prefix, strict=True) if row)


def _limit(stream: Stream, name: str, otherwise: int) -> int:
    """A capacity that the header states, or states from now on."""
    stated: int | None = getattr(stream.header.capacities, name, None)
    if stated is None:
        _set(stream, name, otherwise)
        return otherwise
    return stated


def _set(stream: Stream, name: str, value: int) -> None:
    capacities = stream.header.capacities or ev.Capacities()
    stream.header = replace(stream.header, capacities=replace(capacities, **{name: value}))


def _lower(stream: Stream, name: str, value: int, need: Callable[[ev.Forward], int]) -> Cell:
    """State a smaller capacity; the first forward that exceeds it."""
    _set(stream, name, value)
    return next(cell for cell in _forwards(stream) if need(cell.event) > value)


def _chunks(forward: ev.Forward, limit: int) -> list[ev.Forward]:
    """The forward as several ones of at most `limit` tokens, lane after lane."""
    lens = _lens(forward)
    starts = [0, *accumulate(lens)]
    parts = []
    for first in range(0, sum(lens), limit):
        stop = min(first + limit, sum(lens))
        lanes = [
            (lane, max(first, begin), min(stop, begin + count))
            for lane, (begin, count) in enumerate(zip(starts, lens, strict=False))
            if begin < stop and begin + count > first
        ]
        parts.append(
            replace(
                forward,
                rows=[forward.rows[lane] for lane, _, _ in lanes],
                prefix=[forward.prefix[lane] + low - starts[lane] for lane, low, _ in lanes],
                lens=[high - low for _, low, high in lanes],
                **{
                    key: None if getattr(forward, key) is None else getattr(forward, key)[first:stop]
                    for key in ("tokens", "positions", "slots", "expect")
                },
            )
        )
    return parts
