import itertools

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim import arrivals as module
from kvcanary_cli.sim.arrivals import Arrivals
from tests.sim.made import request


def due(arrivals, now_s):
    return [(sent_s, one.rid) for sent_s, one in arrivals.due(now_s)]


def test_requests_come_at_their_time():
    arrivals = Arrivals([request("a", at=1.0), request("b", at=1.0), request("c", at=4.0)])
    assert arrivals.next_s() == 1.0
    assert due(arrivals, 0.5) == []
    assert due(arrivals, 2.0) == [(1.0, "a"), (1.0, "b")]
    assert arrivals.next_s() == 4.0
    assert due(arrivals, 4.0) == [(4.0, "c")]
    assert arrivals.next_s() is None


def test_request_is_sent_some_time_after_the_one_it_waits_for():
    arrivals = Arrivals([request("a"), request("b", after="a", delay_s=2.0), request("c", at=1.0)])
    assert due(arrivals, 1.0) == [(0.0, "a"), (1.0, "c")]
    assert arrivals.next_s() is None
    arrivals.end("a", 5.0)
    assert arrivals.next_s() == 7.0
    assert due(arrivals, 6.9) == []
    assert due(arrivals, 7.0) == [(7.0, "b")]


def test_request_is_never_sent_before_its_arrival():
    arrivals = Arrivals([request("a"), request("b", at=50.0, after="a", delay_s=2.0)])
    assert due(arrivals, 0.0) == [(0.0, "a")]
    arrivals.end("a", 5.0)
    assert arrivals.next_s() == 50.0


def test_request_that_is_read_after_the_end_waits_for_its_delay_all_the_same():
    arrivals = Arrivals([request("a"), request("b", at=6.0, after="a", delay_s=4.0)])
    assert due(arrivals, 0.0) == [(0.0, "a")]
    arrivals.end("a", 5.0)
    assert due(arrivals, 8.0) == []
    assert due(arrivals, 9.0) == [(9.0, "b")]


def test_chain_and_fan_out():
    waiting = [request("b", after="a"), request("c", after="a", delay_s=1.0), request("d", after="b")]
    arrivals = Arrivals([request("a"), *waiting])
    assert due(arrivals, 0.0) == [(0.0, "a")]
    arrivals.end("a", 2.0)
    assert due(arrivals, 9.0) == [(2.0, "b"), (3.0, "c")]
    arrivals.end("b", 9.0)
    assert due(arrivals, 9.0) == [(9.0, "d")]


@pytest.mark.parametrize("after", ["nobody", "b"], ids=["missing", "itself"])
def test_waiting_for_nobody_holds_nobody_up(after):
    arrivals = Arrivals([request("b", at=1.0, after=after, delay_s=9.0)])
    assert due(arrivals, 1.0) == [(1.0, "b")]


def test_order_of_the_trace_is_checked():
    arrivals = Arrivals([request("a", at=2.0), request("b", at=1.5)])
    with pytest.raises(InputError, match=r"request b arrives at 1\.5 s, after one that arrives at 2\.0 s"):
        due(arrivals, 9.0)


def test_endless_trace_needs_no_endless_memory(monkeypatch):
    monkeypatch.setattr(module, "KNOWN_ENDS", 8)
    arrivals = Arrivals(request(str(number), at=float(number)) for number in itertools.count())
    for second in range(1000):
        for _, rid in due(arrivals, float(second)):
            arrivals.end(rid, float(second))
    assert len(arrivals._ends) == 8
    assert not (arrivals._open)
    assert not (arrivals._held)
    assert not (arrivals._ready)
