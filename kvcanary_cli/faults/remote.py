"""Bytes that arrive after their destination changed hands: K06 and K07."""

from __future__ import annotations

from collections.abc import Generator

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.sources import need_bytes
from kvcanary_cli.faults.stream import Fault, Stream
from kvcanary_cli.faults.victims import private_victim
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.tokens import VOCABULARY

MAX_DISTANCE = 40  # units between the positions of the delivery and those of its new owner


def inflight_write_after_free(stream: Stream) -> Generator[None, None, Fault]:
    """K06: a cancelled request's last launch writes bytes into slots that already have a new owner.

    Found by: `write-after-free` at that write; `real_kv_hash` alone, at TAIL of the new owner's next forward.

    Silent: HEAD, and every structural check.
    """
    need_bytes(stream)
    victim = private_victim(stream, spare=0)
    former = stream.new_name("aborted")
    slots = array(victim.slots)
    stream.before(
        victim.alloc,
        ev.Alloc(to=former, slots=slots),
        ev.Kv(op="write", slots=slots, by=former),
        ev.Free(by=former, slots=slots),
        ev.End(rid=former, why="cancel"),
    )
    yield
    count = stream.rng.randint(1, len(victim.slots))
    at = stream.rng.randint(0, len(victim.slots) - count)
    written = victim.slots[at : at + count]
    (late,) = stream.before(victim.first, ev.Kv(op="write", slots=array(written), by=former))
    return Fault(slots=written, at=late, rid=victim.rid, writer=former, found=late, hits_window=False)


def late_remote_write(stream: Stream) -> Generator[None, None, Fault]:
    """K07: a transfer for a request that was cancelled lands in slots that already have a new owner.

    Found by: `xfer-to-old-epoch` when it lands. With stamps: `position` on the whole unit, by a constant
    distance, `chain_hash` on its first slot, `verify_token`. Bytes only: `real_kv_hash` alone, at TAIL.

    Silent: `real_kv_hash` where the stamps came along; the slot after the unit is a shadow then.
    """
    victim = private_victim(stream, spare=0)
    former, transfer = stream.new_name("remote"), stream.new_name("transfer")
    slots = array(victim.slots)
    at = stream.rng.randrange(1, MAX_DISTANCE) * stream.unit
    tokens = [stream.rng.randrange(VOCABULARY) for _ in range(at + len(slots))]
    _alloc, _start, landed, *_ = stream.before(
        victim.alloc,
        ev.Alloc(to=former, slots=slots),
        ev.Xfer(id=transfer, op="start", rid=former, slots=slots),
        ev.Xfer(id=transfer, op="done", rid=former, slots=slots, tokens=tokens, at=at),
        ev.Free(by=former, slots=slots),
        ev.End(rid=former, why="cancel"),
    )
    yield
    with_stamps = not stream.header.sources or stream.rng.random() < 0.7
    stream.drop(landed)
    done = ev.Xfer(id=transfer, op="done", rid=former, slots=slots, tokens=tokens, at=at, stamps=with_stamps)
    (late,) = stream.before(victim.first, done)
    return Fault(
        slots=victim.slots,
        at=late,
        rid=victim.rid,
        writer=former,
        found=late,
        hits_window=False,
        variant="stamps" if with_stamps else "bytes",
    )
