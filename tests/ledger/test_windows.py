"""The window pool of hybrid models."""

from __future__ import annotations

from kvcanary_cli.trace import events as ev
from tests.ledger.driver import Driver, breaches, header, only, rules
from tests.ledger.made import alloc, bind, decode, evict, forward, free, leaves, publish, s, share

HEAD = header(window=4)


def swa_map(full: list[int], swa: list[int]) -> ev.SwaMap:
    return ev.SwaMap(full=s(*full), swa=s(*swa))


def served(rid: str, row: int, first: int, count: int, window_first: int) -> list[ev.Event]:
    """A request writes a prompt; every slot has a window slot."""
    slots = range(first, first + count)
    mapped = swa_map(list(slots), list(range(window_first, window_first + count)))
    return [bind(rid, row), alloc(rid, slots), mapped, forward(row, 0, slots)]


A = [*served("A", 1, 4, 6, 4), alloc("A", 10, 11, 12, 13), swa_map([10, 11, 12, 13], [10, 11, 12, 13])]


def test_positions_that_leave_the_window_are_unmapped():
    assert rules(HEAD, [*A, swa_map([4, 5], [0, 0]), decode((1, 6, 10))]) == []


def test_position_inside_the_window_that_was_unmapped():
    found = only(HEAD, [*A, swa_map([7], [0]), decode((1, 6, 10))], "window-unmapped")
    assert (found.group, found.slots.tolist(), found.positions) == ("full", [7], (3, 3))
    assert (found.actor, found.row, found.facts["window"]) == ("A", 1, 4)


def test_it_is_reported_once_a_request():
    events = [*A, swa_map([9], [0]), *[decode((1, 6 + i, 10 + i)) for i in range(4)]]
    assert only(HEAD, events, "window-unmapped").facts["repeats"] == 3


def test_position_that_leaves_the_window_before_it_is_read():
    assert rules(HEAD, [*A, swa_map([6], [0]), decode((1, 7, 10))]) == ["length-jump"]
    assert rules(HEAD, [*A, decode((1, 6, 10)), swa_map([6], [0]), decode((1, 7, 11))]) == []


def test_position_written_without_a_window_slot():
    events = [*A, alloc("A", 20), decode((1, 6, 20)), decode((1, 7, 10))]
    assert only(HEAD, events, "window-unmapped").slots.tolist() == [20]


def test_prompt_whose_start_never_gets_a_window_slot():
    events = [bind("A", 1), alloc("A", range(4, 14)), swa_map([9, 10, 11, 12, 13], [9, 10, 11, 12, 13])]
    assert rules(HEAD, [*events, forward(1, 0, range(4, 13)), decode((1, 9, 13))]) == []


def test_shared_prefix_whose_tail_has_no_window_slots():
    shared = [*A, publish("A", range(4, 10)), swa_map([4, 5], [0, 0]), bind("B", 2)]
    tail = [alloc("B", 20), swa_map([20], [20])]
    assert rules(HEAD, [*shared, share("B", range(4, 10)), *tail, decode((2, 6, 20))]) == []
    found = only(HEAD, [*shared, share("B", range(4, 8)), *tail, decode((2, 4, 20))], "window-unmapped")
    assert (found.actor, found.slots.tolist(), found.facts["count"]) == ("B", [4, 5], 2)


def test_window_slot_mapped_by_two_full_slots():
    events = [*A, alloc("B", 20), swa_map([20], [9])]
    found = only(HEAD, events, "window-reused")
    assert (found.group, found.slots.tolist(), found.actor, found.victims) == ("swa", [9], "B", ("A",))
    assert (found.facts["full"], found.facts["other_full"]) == ([20], [9])


def test_two_full_slots_in_one_event():
    events = [bind("A", 1), alloc("A", 4, 5), swa_map([4, 5], [9, 9])]
    assert only(HEAD, events, "window-reused").slots.tolist() == [9]


def test_window_slot_taken_over_after_its_full_slot_let_go():
    freed = [*A, *leaves("A", 1, range(4, 14)), alloc("B", 20)]
    assert rules(HEAD, [*freed, swa_map([9], [0]), swa_map([20], [9])]) == []
    assert rules(HEAD, [*freed, swa_map([20], [9])]) == []


def test_write_through_an_old_map_entry():
    # 9 was freed with its entry standing; B's window slot is reached by whoever gets 9 next
    events = [
        *A,
        *leaves("A", 1, range(4, 14)),
        bind("B", 2),
        alloc("B", 20),
        swa_map([20], [9]),
        bind("C", 3),
    ]
    found = only(HEAD, [*events, alloc("C", 9), forward(3, 0, 9)], "window-reused")
    assert (found.facts["how"], found.actor, found.victims) == ("written-through-old-map", "C", ("B",))


def test_window_slot_released_by_an_event_of_its_own():
    own = [bind("A", 1), alloc("A", 4), alloc("A", 6, group="swa"), swa_map([4], [6]), forward(1, 0, 4)]
    released = [*own, free("A", 6, group="swa")]
    assert rules(HEAD, [*released, swa_map([4], [0])]) == []
    found = breaches(
        HEAD, [*released, alloc("A", 5), alloc("A", 7, group="swa"), swa_map([5], [7]), decode((1, 1, 5))]
    )
    assert [(b.rule, b.facts["how"]) for b in found] == [("window-reused", "released")]


def test_window_slot_mapped_while_it_is_free():
    own = [alloc("A", 4, 5), alloc("A", 6, group="swa"), free("A", 6, group="swa"), swa_map([4], [6])]
    assert only(HEAD, own, "window-reused").facts["how"] == "released"


def test_window_slots_have_holders_epochs_and_writers_of_their_own():
    driver = Driver(HEAD).feed([*A, swa_map([4], [0])])
    gone, kept = driver.ledger.slot("swa", 4), driver.ledger.slot("swa", 5)
    assert (gone.holders, gone.epoch) == ((), 1)
    assert gone.released is not None
    assert gone.released.why == "unmap"
    assert [(h.name, h.how) for h in kept.holders] == [("A", "map")]
    assert kept.byte_writer is not None
    assert (kept.byte_writer.name, kept.byte_writer.position) == ("A", 1)
    assert driver.ledger.holder_names("swa", s(4, 5)) == [(), ("A",)]


def test_window_bytes_are_judged_by_who_holds_the_full_slot():
    assert rules(HEAD, [*A, ev.Kv(op="write", slots=s(5), by="A", group="swa")]) == []
    found = only(HEAD, [*A, ev.Kv(op="write", slots=s(5), by="B", group="swa")], "kv-foreign")
    assert (found.group, found.victims) == ("swa", ("A",))
    assert rules(HEAD, [*A, ev.Offload(key="k", slots=s(5), group="swa")]) == []


def test_a_lone_window_group_is_the_pool():
    head = header()
    head.groups = [ev.Group(kind="swa", window=4)]
    events = [bind("A", 1), alloc("A", range(4, 10)), forward(1, 0, range(4, 10)), alloc("A", 5)]
    assert only(head, events, "alloc-held").group == "swa"
    assert rules(head, [*events[:3], *leaves("A", 1, range(4, 10))]) == []
    assert rules(head, [*events[:3], evict(4, group="swa")]) == ["free-unheld"]
