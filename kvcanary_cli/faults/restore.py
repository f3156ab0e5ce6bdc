"""Offloads, reloads and deliveries that go wrong: K08, K09, K22 to K26."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.prefixes import prefix_scene
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.sources import hashed_sources, need_bytes
from kvcanary_cli.faults.stream import Cell, Fault, Stream
from kvcanary_cli.trace import events as ev

RESTORED_UNITS = 2
SIDECAR = ev.Source(name="sidecar", bytes_per_slot=16, hashed_bytes=16)


@dataclass(kw_only=True, slots=True)
class Restored:
    """A guest whose first units come from the host store or from a remote side, and who then decodes.

    Attributes:
        slots: the restored ones.
        offloads: events that filled the host store, one a group; empty for a remote delivery.
        written: the forward whose KV was offloaded.
        loads: events that brought the data, one a group; the full group first.
        first: the first forward that reads them.
    """

    scene: Scene
    guest: Guest
    slots: list[int]
    offloads: list[Cell]
    written: Cell | None
    loads: list[Cell]
    first: Cell


def restored(stream: Stream, *, remote: bool = False) -> Restored:
    """Dress: a guest writes two units and offloads them, another one reloads them, or has them delivered."""
    scene = find_scene(stream, RESTORED_UNITS * (1 if remote else 2) + 1)
    offloads, written, tokens, key = [], None, [], stream.new_name("stored")
    if not remote:
        author = scene.guest("author", RESTORED_UNITS)
        tokens = author.tokens
        author.enter(scene.before)
        author.forward(scene.before, len(author.own))
        written = author.forwards[0]
        offloads = [
            *scene.before(ev.Offload(key=key, slots=array(author.own))),
            *_in_window(
                stream, scene, ev.Offload(key=f"{key}/window", slots=array(author.windows), group="swa")
            ),
        ]
        author.leave(scene.before)
    guest = scene.guest("restored", RESTORED_UNITS + 1, tokens=tokens)
    slots = guest.own[: RESTORED_UNITS * stream.unit]
    guest.enter(scene.before)
    if remote:
        loads = _deliver(stream, scene, guest, len(slots))
    else:
        windows = array(guest.windows[: len(slots)])
        loads = [
            *scene.before(ev.Reload(key=key, slots=array(slots))),
            *_in_window(stream, scene, ev.Reload(key=f"{key}/window", slots=windows, group="swa")),
        ]
    guest.length = len(slots)
    first = guest.forward(scene.before, 1)
    for cell in scene.cells:
        guest.decode(cell)
    guest.leave(scene.after)
    return Restored(
        scene=scene, guest=guest, slots=slots, offloads=offloads, written=written, loads=loads, first=first
    )


def _in_window(stream: Stream, scene: Scene, event: ev.Event) -> list[Cell]:
    """The same for the window group, where there is one."""
    return scene.before(event) if stream.has_window else []


def _deliver(stream: Stream, scene: Scene, guest: Guest, count: int) -> list[Cell]:
    """A transfer for each group, started and done; the events that land it."""
    offset = stream.header.token_position_offset
    tokens = guest.tokens[offset : count + offset]
    groups = [("full", guest.own[:count])] + [("swa", guest.windows[:count])] * stream.has_window
    done = []
    for group, slots in groups:
        name = stream.new_name("delivery")
        both = {"id": name, "rid": guest.rid, "slots": array(slots), "group": group}
        scene.before(ev.Xfer(op="start", **both))  # type: ignore[arg-type]
        done += scene.before(ev.Xfer(op="done", tokens=tokens, **both))  # type: ignore[arg-type]
    return done


def store_source_race(stream: Stream) -> Generator[None, None, Fault]:
    """K08: slots are offloaded before the forward that writes them has run; a later request reloads that.

    Found by: `offload-unwritten` at the offload; after the reload, whatever was in the slots before: the
    never-stamped look, or a foreign chain (`verify_token`, `position`, `chain_hash`).

    Silent: the slots that were offloaded, which are right on the device; the slot after the restored ones is
    a shadow.
    """
    what = restored(stream)
    yield
    assert what.written is not None
    stream.drop(*what.offloads)
    early = stream.before(what.written, *(cell.event for cell in what.offloads))
    return Fault(slots=what.slots, at=what.loads[0], rid=what.guest.rid, found=early[0])


def reload_race(stream: Stream) -> Generator[None, None, Fault]:
    """K09: a request reads slots while the data for them is still on its way.

    Found by: `read-in-transfer` at that forward, where the slots look never stamped or have a former owner's
    chain.

    Silent: later checks of these slots; the one written from that seed is a shadow (`write_position`,
    `chain_hash`).
    """
    remote = stream.rng.random() < 0.5
    what = restored(stream, remote=remote)
    yield
    stream.drop(*what.loads)
    stream.after(what.first, *(cell.event for cell in what.loads))
    return Fault(
        slots=what.slots,
        at=what.first,
        rid=what.guest.rid,
        found=what.first,
        variant="transfer" if remote else "reload",
    )


def torn_transfer(stream: Stream) -> Generator[None, None, Fault]:
    """K22: only the first unit of a reload or delivery arrives, and it counts as done.

    Found by: `reload-partial` or `xfer-partial`; from the cut on, old content or the never-stamped look.

    Silent: the slots before the cut; the slot after the last one is a shadow.
    """
    remote = stream.rng.random() < 0.5
    what = restored(stream, remote=remote)
    yield
    for load in what.loads:
        load.event = replace(load.event, count=stream.unit)
    return Fault(
        slots=what.slots[stream.unit :],
        at=what.loads[0],
        rid=what.guest.rid,
        found=what.loads[0],
        variant="transfer" if remote else "reload",
    )


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
    for load in what.loads:
        load.event = replace(load.event, **{key: other[key]})
    load = what.loads[0]
    return Fault(slots=what.slots, at=load, rid=what.guest.rid, found=load, is_damaged=False, variant=key)


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


def overlay_restore(stream: Stream) -> Generator[None, None, Fault]:
    """K26: a restore is rounded down to a chunk edge and writes over a cached unit that others read.

    The stored copy comes from a recomputation: the same tokens, other bytes.

    Found by: `reload-over-published`; `real_kv_hash` alone on the unit, at TAIL of every reader and in
    sweeps.

    Silent: every structural check, and the unit that was restored rightly.
    """
    need_bytes(stream)
    scene, prefix = prefix_scene(stream, 2 + 2, prefix_units=1)
    unit, key = stream.unit, stream.new_name("chunk")
    author = scene.guest("author", 2, tokens=prefix.tokens)
    author.enter(scene.before)
    author.forward(scene.before, 2 * unit, byte_salt=stream.rng.getrandbits(32) | 1)
    _store(stream, scene, author, f"{key}/0", 0)
    _store(stream, scene, author, f"{key}/1", unit)
    author.leave(scene.before)
    guest = scene.guest("restored", 2, shared=prefix.slots, tokens=author.tokens)
    guest.enter(scene.before)
    (load,) = scene.before(ev.Reload(key=f"{key}/1", slots=array(guest.own[:unit])))
    _in_window(
        stream, scene, ev.Reload(key=f"{key}/1/window", slots=array(guest.windows[:unit]), group="swa")
    )
    guest.length = 2 * unit
    guest.forward(scene.before, 1)
    for cell in scene.cells:
        guest.decode(cell)
    guest.leave(scene.after)
    yield
    (over,) = stream.before(load, ev.Reload(key=f"{key}/0", slots=array(prefix.slots), stamps=False))
    return Fault(
        slots=prefix.slots,
        at=over,
        rid=prefix.holders[0] if prefix.holders else None,
        found=over,
        hits_window=False,
        involved=[guest.rid, *prefix.holders],
    )


def _store(stream: Stream, scene: Scene, author: Guest, key: str, at: int) -> None:
    """Offload one unit of a guest, in both groups."""
    stop = at + stream.unit
    scene.before(ev.Offload(key=key, slots=array(author.own[at:stop])))
    windows: Sequence[int] = author.windows[at:stop]
    _in_window(stream, scene, ev.Offload(key=f"{key}/window", slots=array(windows), group="swa"))
