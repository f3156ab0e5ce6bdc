"""Bytes and stamps that change without a writer: K21."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Literal

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.ownership import Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.sources import hashed_sources
from kvcanary_cli.faults.stream import Fault, Stream
from kvcanary_cli.faults.victims import next_read
from kvcanary_cli.trace import events as ev

BYTE_SHARE = 0.7  # the others flip a field of the stamp
HASHED_ALWAYS = 16  # every way to hash reads at least so many bytes of a source
# fields of a stamp, with the number of low bits that a flip may hit
FIELDS: tuple[tuple[Literal["token", "position", "prev_hash"], int], ...] = (
    ("token", 17),
    ("position", 12),
    ("prev_hash", 63),
)


def unattributed_bytes(stream: Stream) -> Generator[None, None, Fault]:
    """K21: one bit of a slot's bytes, or of its stamp, flips, and no event says who did it.

    Found by: the next check of the slot. Bytes: `real_kv_hash` alone, at TAIL. Stamp: token gives
    `verify_token` on the slot, position gives `position`, prev-hash gives `chain_hash`.

    Silent: the ledger; the slot after a flipped stamp is a shadow.
    """
    step, (rid, slot) = stream.pick(
        stream.middle(), partial(_read_slots, stream), "no request reads a slot that it wrote before"
    )
    yield
    sources = hashed_sources(stream.header)
    if sources and stream.rng.random() < BYTE_SHARE:
        name, event = "bytes", _flip_byte(stream, slot, sources)
    else:
        name, event = _flip_stamp(stream, slot)
    (damage,) = stream.before(stream.cell(step), event)
    return Fault(slots=[slot], at=damage, rid=rid, hits_window=False, variant=name)


def _flip_byte(stream: Stream, slot: int, sources: Sequence[ev.Source]) -> ev.Event:
    source = stream.rng.choice(sources)
    byte, bit = stream.rng.randrange(HASHED_ALWAYS), stream.rng.randrange(8)
    return ev.Kv(op="flip", slots=array([slot]), byte=byte, xor=1 << bit, sources=[source.name])


def _flip_stamp(stream: Stream, slot: int) -> tuple[str, ev.Event]:
    field, bits = stream.rng.choice(FIELDS)
    return field, ev.Stamp(slot=slot, field=field, xor=1 << stream.rng.randrange(bits))


def _read_slots(stream: Stream, step: Step, state: Ownership) -> list[tuple[str, int]]:
    """Requests of a forward, each with one slot that it reads and that is not its last."""
    found = []
    for lane in step.lanes:
        if lane.prefix < 2 or next_read(stream, lane, step) is None:
            continue
        slots = state.slots_of(lane.rid, 0, lane.prefix - 1).tolist()
        good = [slot for slot in slots if slot in state.content and slot not in stream.used]
        if good:
            found.append((lane.rid, stream.rng.choice(good)))
    return found
