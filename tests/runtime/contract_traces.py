"""Small traces that drive every operation of a runtime, most of them on purpose with faults.

`TRACES` maps a name to a header, its events, and the violation bits that the trace is known to raise, so that a trace
that stopped doing what it is for fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcanary_cli.kernels.consts import (
    BIT_CHAIN_HASH,
    BIT_KV_HASH,
    BIT_OUT_OF_RANGE,
    BIT_POSITION,
    BIT_VERIFY_TOKEN,
    BIT_WRITE_POSITION,
    BIT_WRITE_TOKEN,
)
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.header import FORMAT, VERSION

K = ev.Source(name="k", bytes_per_slot=48, hashed_bytes=32)
V = ev.Source(name="v", bytes_per_slot=16, hashed_bytes=16, half="v")
WINDOW_K = ev.Source(name="k_swa", bytes_per_slot=32, hashed_bytes=32, group="swa")
UNHASHED = ev.Source(name="scales", bytes_per_slot=16, hashed_bytes=0)

FULL = ev.Group(kind="full")
CHAIN = BIT_CHAIN_HASH | BIT_POSITION
LAST_SLOT = 63


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A trace to replay; `bits` is the union of the reason bits of all its violations."""

    header: ev.Header
    events: list[ev.Event]
    bits: int = 0


def header(**changes: Any) -> ev.Header:
    """A pool of 64 slots in pages of 4, 8 rows of 32 columns, one byte source."""
    pool = ev.Pool(slots=LAST_SLOT + 1, page_size=4, rows=8, row_width=32)
    return ev.Header(**{"format": FORMAT, "version": VERSION, "pool": pool, "sources": [K], **changes})


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def run(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count)


def forward(
    rows: list[int], prefix: list[int], slot_list: np.ndarray | None = None, **more: Any
) -> ev.Forward:
    return ev.Forward(rows=rows, prefix=prefix, slots=slot_list, **more)


def bound(*rows: int) -> list[ev.Event]:
    """Requests A, B, … on these rows."""
    return [ev.Bind(row=row, rid=chr(ord("A") + number)) for number, row in enumerate(rows)]


def two_requests() -> list[ev.Event]:
    """A (row 1) and B (row 2) with 5 and 3 tokens in slots 4 to 8 and 12 to 14, and a decode each."""
    return [
        *bound(1, 2),
        forward([1, 2], [0, 0], np.concatenate((run(4, 5), run(12, 3))), lens=[5, 3]),
        forward([1, 2], [5, 3], slots(9, 15)),
    ]


def clean() -> Trace:
    mapped = [ev.Map(row=3, at=0, slots=run(20, 8)), ev.Share(rid="D", at=0, slots=run(4, 4))]
    return Trace(
        header=header(sources=[K, UNHASHED]),
        events=[
            *two_requests(),
            *bound(1, 2, 3, 4)[2:],
            *mapped,
            forward([3, 4, 1], [0, 4, 6], np.concatenate((run(20, 8), slots(30, 31, 10))), lens=[8, 2, 1]),
            forward([4, 3, 2, 1], [6, 8, 4, 7], slots(32, 28, 16, 11), byte_salt=-(2**63) + 5),
            ev.Move(rid="D", row=7),
            forward([7], [7], slots(33)),
            ev.Forward(rows=[], prefix=[], mode="idle"),
        ],
    )


def window() -> Trace:
    """Full and window pool; two tokens leave the window, one mapping is wrong, one slot is beyond the map."""
    groups = [FULL, ev.Group(kind="swa", window=4, slots=24)]
    decode: list[ev.Event] = []
    for step in range(6):
        decode.append(ev.SwaMap(full=slots(9 + step), swa=slots(6 + step)))
        decode.append(forward([1], [5 + step], slots(9 + step)))
    return Trace(
        header=header(groups=groups, sources=[K, WINDOW_K]),
        events=[
            *bound(1, 2),
            ev.SwaMap(full=run(4, 5), swa=run(1, 5)),
            forward([1], [0], run(4, 5), lens=[5]),
            *decode,
            ev.SwaMap(full=slots(4, 5), swa=slots(0, 0)),
            ev.SwaMap(full=slots(13), swa=slots(2)),
            ev.Offload(key="full slots", slots=slots(5)),
            ev.Reload(key="full slots", group="swa", slots=slots(20)),
            ev.Kv(op="flip", group="swa", slots=slots(8, 8, 8), byte=3, xor=16),
            ev.Stamp(group="swa", slot=9, field="token", xor=-1),
            forward([1], [11], slots(20)),
            forward([1], [12], slots(70)),
            ev.SwaMap(full=slots(13), swa=slots(10)),
            forward([1], [13], slots(21)),
            forward([1], [14], slots(22)),
        ],
        bits=CHAIN | BIT_KV_HASH | BIT_OUT_OF_RANGE,
    )


def halves() -> Trace:
    return Trace(
        header=header(sources=[K, V]),
        events=[
            *two_requests(),
            ev.Kv(op="flip", slots=slots(6), byte=15, xor=1, sources=["v"]),
            ev.Stamp(slot=13, field="kv_hash", xor=1 << 62),
            forward([2, 1], [4, 6], slots(16, 10)),
            ev.Kv(op="zero", slots=slots(6, 16)),
            forward([2, 1], [5, 7], slots(17, 11)),
        ],
        bits=BIT_KV_HASH,
    )


def conflicts() -> Trace:
    """Entries of one forward that share slots: across lanes, within a lane, and with another lane's seed."""
    events = [
        *two_requests(),
        *bound(1, 2, 3)[2:],
        forward([1, 2], [6, 4], slots(20, 20), tokens=[7, 8]),
        forward([1, 2], [7, 5], slots(21, 22, 21, 21), lens=[3, 1], tokens=[1, 2, 3, 4]),
        forward([1, 2, 3], [10, 6, 0], slots(21, 9, 21, 9), lens=[1, 2, 1]),
        forward([2, 1], [8, 11], slots(21, 22), expect=[9, -1], tokens=[1, 2]),
        forward([1, 2], [12, 9], slots(24, 24, -1, 70, 24, 25), lens=[2, 4], chain_positions=False),
        forward([1, 2, 3], [14, 13, 1], slots(24, 26, 25), lens=[1, 1, 1]),
    ]
    # the model writes into slots that the prefixes of other lanes name: TAIL sees bytes without their stamps
    bits = CHAIN | BIT_KV_HASH | BIT_WRITE_TOKEN | BIT_WRITE_POSITION | BIT_OUT_OF_RANGE
    return Trace(header=header(), events=events, bits=bits)


def far_conflicts() -> Trace:
    """Lanes write the seeds of lanes that are far off, which another program of a kernel may work on."""
    pool = ev.Pool(slots=256, rows=81, row_width=4)
    rows = list(range(1, 81))
    bind: list[ev.Event] = [ev.Bind(row=row, rid=f"r{row}") for row in rows]
    crossed = np.concatenate((run(41, 40), run(1, 40)))
    return Trace(
        header=header(pool=pool, sources=[]),
        events=[
            *bind,
            forward(rows, [0] * 80, run(1, 80)),
            forward(rows, [1] * 80, crossed),
            forward([1, 80], [2, 2], slots(200, 201)),
        ],
        bits=CHAIN,
    )


def window_conflicts() -> Trace:
    """Two full slots that map to one window slot: a conflict of the window group alone."""
    groups = [FULL, ev.Group(kind="swa", window=4, slots=24)]
    return Trace(
        header=header(groups=groups, sources=[K, WINDOW_K, V]),
        events=[
            ev.SwaMap(
                full=np.concatenate((run(4, 6), run(12, 5))), swa=np.concatenate((run(1, 6), run(7, 5)))
            ),
            *two_requests(),
            ev.SwaMap(full=slots(10, 16), swa=slots(20, 20)),
            forward([1, 2], [6, 4], slots(10, 16)),
            ev.SwaMap(full=slots(11, 17), swa=slots(21, 6)),
            forward([1, 2], [7, 5], slots(11, 17)),
            forward([1, 2], [8, 6], slots(18, 19)),
        ],
        bits=CHAIN | BIT_KV_HASH | BIT_WRITE_POSITION,
    )


def out_of_range() -> Trace:
    """Slots beyond the pool, skipped tokens, columns that name nothing, and reads past the table's end."""
    return Trace(
        header=header(),
        events=[
            *two_requests(),
            *bound(1, 2, 7)[2:],
            forward([1], [6], slots(64, 2**40, -1, 10), lens=[4]),
            forward([1, 2], [10, 9], slots(11, 16)),
            forward([7], [29], run(40, 5), lens=[5]),
            forward([7, 2], [34, 40], slots(45, 46)),
            forward([1], [30], slots(20, 21, 22, 23), lens=[4]),
            ev.Map(row=2, at=0, slots=slots(0, 12, 0, LAST_SLOT)),
            forward([2, 1], [4, 34], slots(25, 26)),
        ],
        bits=CHAIN | BIT_KV_HASH | BIT_OUT_OF_RANGE | BIT_WRITE_POSITION,
    )


def padding() -> Trace:
    return Trace(
        header=header(),
        events=[
            *two_requests(),
            forward([1, 2, 0, 0], [6, 4, 0, 0], slots(10, 16, 0, -1), width=8),
            forward(
                [1, 0],
                [7, 3],
                slots(11, 0, 17, 6),
                lens=[1, 3],
                pad_writes=slots(8, 8, 40),
                pad_lanes=[1, 1, 1],
            ),
            forward([1, 2], [8, 5], slots(20, 18), width=4, byte_salt=77),
        ],
        bits=BIT_KV_HASH,
    )


def kv_operations() -> Trace:
    return Trace(
        header=header(sources=[K, UNHASHED, ev.Source(name="k2", bytes_per_slot=16, hashed_bytes=16)]),
        events=[
            *two_requests(),
            ev.Kv(op="copy", slots=slots(40, 41, 42), from_=slots(4, 40, 41), by="A"),
            ev.Kv(op="copy", slots=slots(4, 5, 6, 4), from_=slots(5, 6, 4, 13)),
            ev.Kv(op="write", slots=slots(7, 12, 7), sources=["k2"]),
            ev.Kv(op="flip", slots=slots(8, 14, 8), byte=40, xor=255, sources=["k"]),
            ev.Kv(op="flip", slots=slots(9), byte=15, xor=128),
            ev.Kv(op="flip", slots=slots(9), byte=40, xor=2),
            ev.Kv(op="zero", slots=slots(13, 50, LAST_SLOT), sources=["scales", "k"]),
            forward([1, 2], [6, 4], slots(10, 16)),
        ],
        bits=BIT_KV_HASH,
    )


def stamps() -> Trace:
    flips = [
        ev.Stamp(slot=4, field="token", xor=1),
        ev.Stamp(slot=5, field="position", xor=-(2**63), buffer="head"),
        ev.Stamp(slot=6, field="prev_hash", xor=2**63 - 1, buffer="tail"),
        ev.Stamp(slot=7, field="kv_hash", xor=12),
        ev.Stamp(slot=LAST_SLOT, field="kv_hash", xor=3, buffer="head"),
    ]
    truth = [ev.Truth(rid="A", at=0, tokens=[5, 6, 7, 8, 9, 10])]
    return Trace(
        header=header(),
        events=[*truth, *two_requests(), *flips, forward([1, 2], [6, 4], slots(10, 16), tokens=[3, 4])],
        bits=CHAIN | BIT_KV_HASH | BIT_VERIFY_TOKEN,
    )


def offload() -> Trace:
    return Trace(
        header=header(sources=[K, V]),
        events=[
            *two_requests(),
            ev.Offload(key="h", slots=run(4, 6)),
            ev.Offload(key="other", slots=run(12, 2)),
            ev.Kv(op="zero", slots=run(4, 6), by="A"),
            ev.Reload(key="h", slots=run(40, 6)),
            ev.Reload(key="h", slots=run(4, 6), count=4),
            ev.Reload(key="other", slots=slots(14, 15), sources=["k"]),
            ev.Reload(key="other", slots=slots(8, 13), stamps=False),
            ev.Reload(key="h", slots=slots(50, 51, 50), sources=["v"]),
            forward([1, 2], [6, 4], slots(10, 16)),
            *bound(1, 2, 3)[2:],
            ev.Share(rid="C", at=0, slots=run(40, 6)),
            forward([3], [6], slots(20)),
        ],
        bits=CHAIN | BIT_KV_HASH | BIT_WRITE_POSITION,
    )


def transfer() -> Trace:
    return Trace(
        header=header(sources=[K, V, UNHASHED]),
        events=[
            *two_requests(),
            *bound(1, 2, 3)[2:],
            ev.Xfer(id="t", op="start", rid="C", slots=run(20, 6)),
            ev.Xfer(id="t", op="done", tokens=[1, 2, 3, 4, 5, 6]),
            ev.Map(row=3, at=0, slots=run(20, 6)),
            forward([3], [6], slots(26)),
            ev.Xfer(id="u", op="done", rid="C", at=7, slots=slots(27, 28, 29), tokens=[7, 8, 9], count=2),
            ev.Map(row=3, at=7, slots=slots(27, 28, 29)),
            forward([3], [9], slots(30)),
            ev.Xfer(
                id="v", op="done", rid="C", at=1, slots=slots(40, 41, 40), tokens=[1, 2, 3], sources=["v"]
            ),
            ev.Xfer(id="w", op="done", at=0, slots=slots(44, 45), tokens=[1, 2], stamps=False),
            ev.Map(row=4, at=0, slots=slots(20, 40, 41, 44)),
            forward([4], [4], slots(46)),
        ],
        bits=CHAIN | BIT_KV_HASH | BIT_WRITE_POSITION,
    )


def sweep() -> Trace:
    groups = [FULL, ev.Group(kind="swa", window=8, slots=32)]
    return Trace(
        header=header(groups=groups, sources=[K, V, WINDOW_K]),
        events=[
            ev.SwaMap(full=np.concatenate((run(4, 6), run(12, 4))), swa=run(1, 10)),
            *two_requests(),
            ev.Publish(rid="A", at=0, slots=run(4, 6)),
            ev.Publish(rid="B", at=0, slots=run(12, 4)),
            ev.Sweep(),
            ev.Kv(op="flip", slots=slots(5), byte=0, xor=1),
            ev.Kv(op="flip", group="swa", slots=slots(8), byte=0, xor=1),
            ev.Stamp(slot=13, field="prev_hash", xor=1),
            ev.SwaMap(full=slots(4), swa=slots(0)),
            ev.Publish(at=3, slots=slots(13), after=14),
            ev.Sweep(),
            ev.Evict(slots=run(12, 4)),
            ev.Sweep(),
        ],
        bits=CHAIN | BIT_KV_HASH,
    )


def expected_tokens() -> Trace:
    """Truth before and after the bind, in pieces, across a move, a rebind and a row that another request had."""
    return Trace(
        header=header(token_position_offset=1),
        events=[
            ev.Truth(rid="A", at=0, tokens=list(range(100, 108))),
            *bound(1, 2),
            ev.Truth(rid="B", at=0, tokens=[1, 2, 3]),
            forward([1, 2], [0, 0], np.concatenate((run(4, 5), run(12, 3))), lens=[5, 3]),
            forward([1, 2], [5, 3], slots(9, 15), tokens=[106, 50]),
            ev.Truth(rid="B", at=3, tokens=[4, 5, 51, 52]),
            forward([1, 2], [6, 4], slots(10, 16), tokens=[55, 51]),
            ev.Truth(rid="A", at=2, tokens=[7]),
            ev.Move(rid="B", row=5),
            forward([1, 5], [7, 5], slots(11, 17)),
            ev.Unbind(row=1),
            ev.End(rid="A", why="done"),
            ev.Bind(row=1, rid="C"),
            forward([5, 1], [6, 0], np.concatenate((slots(18), run(20, 4))), lens=[1, 4]),
            ev.Truth(rid="C", at=1, tokens=list(range(40))),
            forward([1, 5], [4, 7], slots(24, 19)),
        ],
        bits=BIT_VERIFY_TOKEN,
    )


def input_checks() -> Trace:
    return Trace(
        header=header(),
        events=[
            *bound(1, 2),
            forward([1, 2], [0, 0], run(4, 5), lens=[3, 2], tokens=[1, 2, 3, 4, 5], expect=[1, 9, -1, 4, 5]),
            forward([1, 2], [3, 2], slots(9, 10), positions=[4, 2], expect=[-1, -1]),
            forward([1, 2], [4, 3], slots(11, 12, 13, 14), lens=[3, 1], positions=[5, 9, 6, 3]),
            forward([1, 2], [7, 4], slots(15, 16), positions=[1, 1], chain_positions=False),
        ],
        bits=BIT_POSITION | BIT_WRITE_TOKEN | BIT_WRITE_POSITION,
    )


def growing() -> Trace:
    """Batches of 1, 2, 4 … 32 lanes that read longer and longer prefixes: plans have to grow on the way."""
    pool = ev.Pool(slots=512, rows=33, row_width=16)
    events: list[ev.Event] = [ev.Bind(row=row, rid=f"r{row}") for row in range(1, 33)]
    first = 1
    for step in range(6):
        rows = list(range(1, 2**step + 1))
        new = [row for row in rows if row > 2 ** (step - 1)]
        old = rows[: len(rows) - len(new)]
        prefix = [int(np.log2(2 ** (step - 1 - (row - 1).bit_length()))) + 2 for row in old] + [0] * len(new)
        lens = [1] * len(old) + [2] * len(new)
        events.append(forward(rows, prefix, run(first, sum(lens)), lens=lens))
        first += sum(lens)
    return Trace(header=header(pool=pool, sources=[]), events=events)


BUILDERS = (
    clean, window, halves, conflicts, far_conflicts, window_conflicts, out_of_range, padding, kv_operations,
    stamps, offload, transfer, sweep, expected_tokens, input_checks, growing,
)  # fmt: skip
TRACES = {builder.__name__: builder for builder in BUILDERS}
