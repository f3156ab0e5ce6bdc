"""Two sides that mean different things by the same bytes: K23 to K25."""

from __future__ import annotations

from collections.abc import Generator

from msgspec.structs import replace

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.restore import RESTORED_UNITS, restored
from kvcanary_cli.faults.sources import hashed_sources, need_bytes
from kvcanary_cli.faults.stream import Fault, Stream
from kvcanary_cli.trace import events as ev

SIDECAR = ev.Source(name="sidecar", bytes_per_slot=16, hashed_bytes=16)


def missing_sidecar(stream: Stream) -> Generator[None, None, Fault]:
    """K23: a reload or delivery brings the main bytes and not those of a second source.

    A trace with one hashed source gets a second one, `sidecar`.

    Found by: `reload-missing-sources` or `xfer-missing-sources`; `real_kv_hash` alone, on every restored
    slot, at TAIL.

    Silent: every structural check.
    """
    need_bytes(stream)
    if len(hashed_sources(stream.header)) == 1:
        stream.header = replace(stream.header, sources=[*stream.header.sources, SIDECAR])
    remote = stream.rng.random() < 0.5
    what = restored(stream, remote=remote)
    yield
    missing = stream.rng.choice(hashed_sources(stream.header)[1:]).name
    load = what.loads[0]
    present = [
        source.name for source in stream.header.sources if source.group == "full" and source.name != missing
    ]
    load.event = replace(load.event, sources=present)
    return Fault(
        slots=what.slots, at=load, rid=what.guest.rid, found=load, hits_window=False, variant=missing
    )


def dtype_scale(stream: Stream) -> Generator[None, None, Fault]:
    """K24: the two sides of a reload disagree on what the same bytes mean.

    The header's sources and both sides declare type, element size and scale.

    Found by: `dtype-mismatch`, from the declarations alone.

    Silent: every check; no slot is damaged.
    """
    stated = {"dtype": "bfloat16", "item_bytes": 2, "scale": "v1"}
    if any(
        getattr(source, key) not in (None, value)
        for source in stream.header.sources
        for key, value in stated.items()
    ):
        stated = {key: getattr(stream.header.sources[0], key) or value for key, value in stated.items()}
    stream.header = replace(
        stream.header, sources=[_declared(source, stated) for source in stream.header.sources]
    )
    what = restored(stream)
    for cell in (*what.offloads, *what.loads):
        cell.event = replace(cell.event, **stated)
    yield
    other = {"dtype": "float8_e4m3fn", "item_bytes": 1, "scale": "v2"}
    key = stream.rng.choice(sorted(other))
    load = what.loads[0]
    load.event = replace(load.event, **{key: other[key]})
    return Fault(
        slots=what.slots,
        at=load,
        rid=what.guest.rid,
        found=load,
        is_damaged=False,
        hits_window=False,
        variant=key,
    )


def _declared(source: ev.Source, stated: dict[str, object]) -> ev.Source:
    """The source with what it does not declare itself."""
    missing = {key: value for key, value in stated.items() if getattr(source, key) is None}
    return replace(source, **missing)


def geometry_mismatch(stream: Stream) -> Generator[None, None, Fault]:
    """K25: the sending side lays pages out in another order of slots, from a page size of its own.

    Found by: `geometry-mismatch`; `position` and `verify_token` on the slots that hold another token, in a
    pattern that repeats with the page, and `chain_hash`.

    Silent: the first and the last slot of a page, which hold the right token; a last one is a shadow.
    """
    what = restored(stream)
    for cell in (*what.offloads, *what.loads):
        cell.event = replace(cell.event, page_size=stream.header.pool.page_size)
    yield
    order = _interleaved(stream.unit, RESTORED_UNITS)
    size = stream.header.pool.page_size
    for load in what.loads:
        there = [int(load.event.slots[at]) for at in order]
        other = size // 2 if size % 2 == 0 else 2 * size
        load.event = replace(load.event, slots=array(there), page_size=other)
    wrong = [slot for slot, at in zip(what.slots, order, strict=True) if slot != what.slots[at]]
    load = what.loads[0]
    return Fault(slots=wrong, at=load, rid=what.guest.rid, found=load)


def _interleaved(unit: int, units: int) -> list[int]:
    """For each stored token the index at which it lands: two half pages, laid out one slot of each in turn."""
    half = -(-unit // 2)
    block = [2 * at if at < half else 2 * (at - half) + 1 for at in range(unit)]
    return [number * unit + at for number in range(units) for at in block]
