"""From faults to answers: steps, first check, shadows, bystanders, on a stream by hand."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.faults.finish import answers_of, ranges
from kvcanary_cli.faults.stream import Cell, Fault, Stream
from kvcanary_cli.trace import events as ev


def slots(*numbers):
    return np.array(numbers, np.int64)


HEADER = ev.Header(
    format="kvcanary-trace",
    version=1,
    pool=ev.Pool(slots=32, rows=5, row_width=16),
    groups=[ev.Group(kind="full")],
)
STREAM = [
    ev.Bind(row=1, rid="A"),
    ev.Bind(row=2, rid="B"),
    ev.Bind(row=3, rid="C"),
    ev.Alloc(to="A", slots=slots(1, 2, 3, 4, 5, 6)),
    ev.Alloc(to="B", slots=slots(11, 12, 13, 14)),
    ev.Forward(rows=[1, 2], prefix=[0, 0], lens=[4, 2], slots=slots(1, 2, 3, 4, 11, 12)),  # 5: step 0
    ev.Publish(rid="A", at=0, slots=slots(1, 2)),
    ev.Share(rid="C", at=0, slots=slots(1, 2)),
    ev.Alloc(to="C", slots=slots(21)),
    ev.Forward(rows=[2], prefix=[2], slots=slots(13)),  # 9: step 1
    ev.Sweep(),  # 10
    ev.Forward(rows=[3, 2], prefix=[2, 3], slots=slots(21, 14)),  # 11: step 2
    ev.Forward(rows=[1], prefix=[4], slots=slots(5)),  # 12: step 3
]


def answer(fault, at, found=None):
    """The answer of a fault at one place of the stream."""
    cells = [Cell(event) for event in STREAM]
    fault.at, fault.kind = cells[at], "K21"
    fault.found = cells[found] if found is not None else None
    (only,) = answers_of(HEADER, cells, [fault])
    return only


def fault(*numbers, **more):
    return Fault(slots=numbers, at=Cell(None), **more)


def test_step_of_a_forward_and_of_what_stands_between():
    assert answer(fault(1), at=5).step == 0
    assert answer(fault(1), at=0).step == 0  # before the first forward
    assert answer(fault(1), at=8).step == 0  # after it
    assert answer(fault(1), at=10).step == 1
    assert answer(fault(1), at=11).step == 2


def test_found_by_the_next_check_of_a_slot():
    assert answer(fault(1), at=8).found_by_step == 1  # the sweep after step 1
    assert answer(fault(3), at=8).found_by_step == 3  # only A's row names it
    assert answer(fault(12), at=8).found_by_step == 1  # B's next forward
    assert answer(fault(12), at=9).found_by_step == 1  # TAIL of the forward itself
    assert answer(fault(5), at=8).found_by_step == 3  # never checked: the end


def test_found_by_the_event_that_breaks_the_rule():
    assert answer(fault(3), at=8, found=8).found_by_step == 0
    assert answer(fault(3), at=11, found=9).found_by_step == 2  # not before it happened


def test_shadows_follow_in_rows_and_in_the_cache():
    assert answer(fault(3), at=8).innocent.slots == [[4, 4]]
    assert answer(fault(2), at=8).innocent.slots == [[3, 3], [21, 21]]
    assert answer(fault(1), at=8).innocent.slots == [[2, 2]]
    assert answer(fault(1, 2, 3, 4), at=8).innocent.slots == [[5, 5], [21, 21]]


def test_bystanders_are_lanes_of_that_forward_that_neither_read_nor_took_part():
    assert answer(fault(3), at=8).innocent.rids == ["B"]
    assert answer(fault(3, rid="B"), at=8).innocent.rids == []
    assert answer(fault(3, writer="B"), at=8).innocent.rids == []
    assert answer(fault(3, involved=["B"]), at=8).innocent.rids == []
    assert answer(fault(3), at=11).innocent.rids == ["B", "C"]
    assert answer(fault(2), at=11).innocent.rids == ["B"]  # C reads it


def test_a_slot_that_is_handed_out_anew_is_healed():
    again = [ev.Free(by="A", slots=slots(3)), ev.Alloc(to="B", slots=slots(3))]
    cells = [Cell(event) for event in (*STREAM[:12], *again, STREAM[12])]
    what = Fault(slots=[3], at=cells[8], kind="K21")
    (only,) = answers_of(HEADER, cells, [what])
    assert only.innocent.slots == []
    assert only.slots == [[3, 3]]


def test_ranges():
    assert ranges([]) == []
    assert ranges([5, 3, 4, 9, 5]) == [[3, 5], [9, 9]]


def test_edits_keep_their_order_around_a_cell():
    stream = Stream(HEADER, STREAM[:2])
    first, second = stream.cells
    inner = stream.after(first, ev.Sweep(t=1.0), ev.Sweep(t=2.0))
    stream.after(inner[0], ev.Sweep(t=1.5))
    (late,) = stream.before(second, ev.Sweep(t=3.0))
    stream.before(late, ev.Sweep(t=2.5))
    stream.before(first, ev.Sweep(t=0.5))
    stream.drop(second)
    stream.commit()
    assert [event.t for event in stream.events()] == [0.5, None, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert stream.cells[1] is first


def test_names_are_new():
    stream = Stream(HEADER, STREAM)
    assert [stream.new_name("A"), stream.new_name("guest"), stream.new_name("guest")] == [
        "A-2",
        "guest",
        "guest-2",
    ]
