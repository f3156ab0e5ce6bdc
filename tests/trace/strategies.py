"""hypothesis strategies: headers and events of every kind that the reader accepts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kvcanary_cli.trace import events as ev

FULL_SLOTS, SWA_SLOTS, ROWS = 512, 64, 9
INT64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=6).filter(lambda text: not text.startswith("xfer:") and text != "cache")
tokens = st.integers(0, 2**31 - 1)
rows = st.integers(0, ROWS - 1)
columns = st.integers(0, 2**31 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
layouts = {
    "page_size": st.none() | st.integers(1, 64),
    "dtype": st.none() | st.text(max_size=4),
    "item_bytes": st.none() | st.integers(1, 8),
    "scale": st.none() | st.text(max_size=4) | st.integers(0, 9),
}


def slot_lists(limit: int, *, size: int | None = None, low: int = 0) -> st.SearchStrategy[np.ndarray]:
    """Arrays of single slots and runs in [low, limit), `size` slots long if given."""
    if size is not None:
        return st.lists(st.integers(low, limit - 1), min_size=size, max_size=size).map(np.array)
    run = st.tuples(st.integers(low, limit - 9), st.integers(1, 9)).map(
        lambda r: np.arange(r[0], r[0] + r[1])
    )
    return st.lists(run, min_size=1, max_size=5).map(np.concatenate)


def groups() -> st.SearchStrategy[tuple[str, int, str]]:
    """A group, its number of slots, and the name of its byte source."""
    return st.sampled_from([("full", FULL_SLOTS, "k"), ("swa", SWA_SLOTS, "kw")])


def headers() -> st.SearchStrategy[ev.Header]:
    """Headers with both groups and a source for each; sizes fixed, so that every event below fits."""
    return st.builds(
        ev.Header,
        format=st.just("kvcanary-trace"),
        version=st.just(1),
        pool=st.builds(
            ev.Pool,
            slots=st.just(FULL_SLOTS),
            page_size=st.sampled_from([1, 16]),
            rows=st.just(ROWS),
            row_width=st.integers(1, 4096),
        ),
        groups=st.just([ev.Group(kind="full"), ev.Group(kind="swa", window=8, slots=SWA_SLOTS)]),
        sources=st.just(
            [
                ev.Source(name="k", bytes_per_slot=64, hashed_bytes=16, dtype="bf16", item_bytes=2, scale=1),
                ev.Source(name="kw", bytes_per_slot=64, hashed_bytes=0, half="v", group="swa"),
            ]
        ),
        token_position_offset=st.sampled_from([0, 1]),
        capacities=st.none() | st.builds(ev.Capacities, verify_capacity=st.none() | st.integers(1, 9)),
        ring_capacity=st.integers(1, 5000),
        records=st.none() | st.lists(st.sampled_from(["alloc", "free", "swa_map"]), unique=True),
        state=st.sampled_from(["empty", "unknown"]),
        continues=st.none() | st.builds(ev.Continues, part=st.integers(1, 9), of=names),
        producer=st.none() | objects,
    )


@st.composite
def forwards(draw: st.DrawFn) -> ev.Forward:
    num_lanes = draw(st.integers(0, 5))
    num_padded = draw(st.integers(0, num_lanes))
    real = draw(st.lists(st.integers(1, ROWS - 1), min_size=num_lanes, max_size=num_lanes))
    lens = draw(st.none() | st.lists(st.integers(0, 4), min_size=num_lanes, max_size=num_lanes))
    num_tokens = num_lanes if lens is None else sum(lens)

    def flat(values: st.SearchStrategy[int]) -> list[int] | None:
        return draw(st.none() | st.lists(values, min_size=num_tokens, max_size=num_tokens))

    width = draw(st.none() | st.integers(num_lanes, 8))
    pads = (
        draw(st.lists(st.integers(0, max(width or 0, num_lanes) - 1), max_size=3))
        if width or num_lanes
        else []
    )
    slots = flat(INT64 | st.just(-1))
    return ev.Forward(
        rows=real[: num_lanes - num_padded] + [0] * num_padded,
        prefix=draw(st.lists(columns, min_size=num_lanes, max_size=num_lanes)),
        mode=draw(st.sampled_from([None, "extend", "decode", "mixed", "verify", "draft", "idle"])),
        lens=lens,
        tokens=flat(tokens),
        positions=flat(INT64),
        slots=None if not slots else np.array(slots),
        expect=flat(st.integers(-1, 2**31 - 1)),
        chain_positions=draw(st.booleans()),
        width=width,
        pad_writes=draw(st.none() | slot_lists(FULL_SLOTS)) if not pads else np.arange(len(pads)),
        pad_lanes=pads or None,
        accepted=draw(st.none() | st.just([0] * num_lanes)),
        byte_salt=draw(INT64),
    )


@st.composite
def kvs(draw: st.DrawFn) -> ev.Kv:
    group, limit, source = draw(groups())
    op = draw(st.sampled_from(["write", "flip", "zero", "copy"]))
    slots = draw(slot_lists(limit))
    return ev.Kv(
        op=op,
        slots=slots,
        by=draw(st.none() | names),
        byte=draw(st.integers(0, 63)) if op == "flip" else None,
        xor=draw(st.integers(1, 255)) if op == "flip" else None,
        from_=draw(slot_lists(limit, size=len(slots))) if op == "copy" else None,
        sources=draw(st.none() | st.just([source])),
        group=group,
    )


@st.composite
def xfers(draw: st.DrawFn) -> ev.Xfer:
    group, limit, source = draw(groups())
    op = draw(st.sampled_from(["start", "done", "cancel"]))
    event = ev.Xfer(id=draw(names), op=op, rid=draw(st.none() | names), group=group)
    for key, values in layouts.items():
        setattr(event, key, draw(values))
    if op == "start":
        event.slots = draw(slot_lists(limit))
    if op == "done":
        event.slots = draw(st.none() | slot_lists(limit))
        num_slots = 3 if event.slots is None else len(event.slots)
        event.at = draw(st.integers(0, 3))
        num_tokens = num_slots + draw(st.sampled_from([0, event.at]))
        event.tokens = draw(st.lists(tokens, min_size=num_tokens, max_size=num_tokens))
        event.count = draw(st.none() | st.integers(0, num_slots))
        event.sources = draw(st.none() | st.just([source]))
        event.stamps = draw(st.booleans())
    return event


@st.composite
def publishes(draw: st.DrawFn) -> ev.Publish:
    slots = draw(slot_lists(FULL_SLOTS))
    return ev.Publish(
        at=draw(columns),
        slots=slots,
        rid=draw(st.none() | names),
        tokens=draw(st.none() | st.lists(tokens, min_size=len(slots), max_size=len(slots))),
        after=draw(st.none() | st.integers(0, FULL_SLOTS - 1)),
        key=draw(st.none() | objects),
    )


@st.composite
def reloads(draw: st.DrawFn) -> ev.Reload:
    group, limit, source = draw(groups())
    slots = draw(slot_lists(limit))
    count = draw(st.none() | st.integers(0, len(slots)))
    event = ev.Reload(key=draw(names), slots=slots, count=count, stamps=draw(st.booleans()), group=group)
    event.sources = draw(st.none() | st.just([source]))
    for key, values in layouts.items():
        setattr(event, key, draw(values))
    return event


@st.composite
def digests(draw: st.DrawFn) -> ev.Digest:
    group, limit, source = draw(groups())
    slots = draw(slot_lists(limit))
    hashes = st.integers(0, 2**64 - 1).map(lambda value: f"0x{value:016x}")
    hash_list = draw(st.lists(hashes, min_size=len(slots), max_size=len(slots)))
    return ev.Digest(source=source, slots=slots, hash=hash_list, group=group)


@st.composite
def swa_maps(draw: st.DrawFn) -> ev.SwaMap:
    full = draw(slot_lists(FULL_SLOTS))
    return ev.SwaMap(full=full, swa=draw(slot_lists(SWA_SLOTS, size=len(full))))


full_slots = slot_lists(FULL_SLOTS)
BY_KIND: dict[str, st.SearchStrategy[ev.Event]] = {
    "bind": st.builds(ev.Bind, row=rows, rid=names),
    "unbind": st.builds(ev.Unbind, row=rows),
    "move": st.builds(ev.Move, row=rows, rid=names),
    "end": st.builds(ev.End, rid=names, why=st.sampled_from(["done", "cancel", "retract"])),
    "truth": st.builds(ev.Truth, rid=names, at=columns, tokens=st.lists(tokens, max_size=9)),
    "alloc": groups().flatmap(
        lambda g: st.builds(ev.Alloc, to=names, slots=slot_lists(g[1]), group=st.just(g[0]))
    ),
    "hold": st.builds(ev.Hold, to=names, slots=full_slots),
    "share": st.builds(ev.Share, rid=names, at=columns, slots=full_slots),
    "publish": publishes(),
    "free": groups().flatmap(
        lambda g: st.builds(ev.Free, by=names, slots=slot_lists(g[1]), group=st.just(g[0]))
    ),
    "evict": groups().flatmap(lambda g: st.builds(ev.Evict, slots=slot_lists(g[1]), group=st.just(g[0]))),
    "map": st.builds(ev.Map, row=rows, at=columns, slots=full_slots, by=st.none() | names),
    "swa_map": swa_maps(),
    "forward": forwards(),
    "gap": st.builds(ev.Gap, forwards=st.none() | columns, why=st.none() | st.text(max_size=5)),
    "kv": kvs(),
    "stamp": groups().flatmap(
        lambda g: st.builds(
            ev.Stamp,
            slot=st.integers(0, g[1] - 1),
            field=st.sampled_from(["token", "position", "prev_hash", "kv_hash"]),
            xor=INT64.filter(bool),
            buffer=st.sampled_from([None, "head", "tail"]),
            group=st.just(g[0]),
        )
    ),
    "offload": groups().flatmap(
        lambda g: st.builds(ev.Offload, key=names, slots=slot_lists(g[1]), group=st.just(g[0]), **layouts)
    ),
    "reload": reloads(),
    "xfer": xfers(),
    "digest": digests(),
    "sweep": st.builds(ev.Sweep),
}
