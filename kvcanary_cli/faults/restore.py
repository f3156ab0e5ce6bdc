"""Offloads, reloads and deliveries that go wrong: K08, K09, K22 and K26."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.prefixes import prefix_scene
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.sources import need_bytes
from kvcanary_cli.faults.stream import Cell, Fault, Stream
from kvcanary_cli.trace import events as ev

RESTORED_UNITS = 2


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
