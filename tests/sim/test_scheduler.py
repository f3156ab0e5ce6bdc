"""What the scheduler model decides: batches, budgets, admission, retraction, time."""

import itertools

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.sim.record import TRUTH_TOKENS
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.sim.tokens import request_tokens
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import encode_event
from tests.sim.made import batch_lens, forwards, only, request, run

TWO = [request("a", prompt=10, output=3), request("b", prompt=6, output=3)]


def rids(stream):
    """The requests of each forward, in lane order."""
    rows, batches = {}, []
    for event in stream:
        if type(event) is ev.Bind:
            rows[event.row] = event.rid
        elif type(event) is ev.Forward:
            batches.append([rows[row] for row in event.rows])
    return batches


def test_prompts_of_a_batch_then_decodes():
    stream = run(TWO)
    assert [forward.mode for forward in forwards(stream)] == ["extend", "decode", "decode"]
    assert rids(stream) == [["a", "b"]] * 3
    assert [batch_lens(forward) for forward in forwards(stream)] == [[10, 6], [1, 1], [1, 1]]
    assert [forward.prefix for forward in forwards(stream)] == [[0, 0], [10, 6], [11, 7]]


def test_last_sampled_token_gets_no_slot():
    stream = run([request("a", prompt=8, output=4)])
    assert sum(sum(batch_lens(forward)) for forward in forwards(stream)) == 8 + 4 - 1
    # 11 tokens would need a third page of 4 with a twelfth token only
    assert sum(event.slots.size for event in only(stream, ev.Alloc)) == 12


@pytest.mark.parametrize("output", [0, 1])
def test_request_without_further_tokens_ends_after_its_prompt(output):
    stream = run([request("a", prompt=8, output=output)])
    assert len(forwards(stream)) == 1
    assert [event.why for event in only(stream, ev.End)] == ["done"]


def test_events_of_a_request_in_engine_order():
    stream = run([request("a", prompt=9, output=2)])
    names = [type(event).__name__ for event in stream]
    assert names == [
        *["Bind", "Truth", "Alloc", "Forward", "Publish"],  # 9 tokens, so 2 whole pages
        *["Forward", "Free", "Free", "Unbind", "End"],
    ]
    tail, shared = only(stream, ev.Free)
    assert (tail.slots.tolist(), shared.slots.tolist()) == ([12, 13, 14, 15], list(range(4, 12)))


def test_truth_is_told_once_in_pieces():
    stream = run(
        [request("a", prompt=TRUTH_TOKENS, output=3)],
        pool_slots=32_768,
        row_width=20_000,
        chunk_tokens=None,
    )
    told = only(stream, ev.Truth)
    assert [event.at for event in told] == [0, TRUTH_TOKENS]
    tokens = request_tokens(request("a", prompt=TRUTH_TOKENS, output=3), seed=0)
    assert told[0].tokens + told[1].tokens == tokens.tolist()


def test_chunk_budget_cuts_prompts_at_pages():
    stream = run([request("a", prompt=50, output=1), request("b", prompt=50, output=1)], chunk_tokens=32)
    # 32 and 18 of a; what is left of the second budget goes to b, in whole pages
    assert [batch_lens(forward) for forward in forwards(stream)] == [[32], [18, 12], [32], [6]]
    assert rids(stream) == [["a"], ["a", "b"], ["b"], ["b"]]


def test_prefill_budget_keeps_prompts_whole():
    three = [request(name, prompt=30, output=1) for name in "abc"]
    # each is charged with 8 pages of 4
    stream = run(three, chunk_tokens=None, max_prefill_tokens=65)
    assert [batch_lens(forward) for forward in forwards(stream)] == [[30, 30], [30]]
    # a prompt that would just fill the budget waits, as in SGLang
    stream = run(three, chunk_tokens=None, max_prefill_tokens=64)
    assert [batch_lens(forward) for forward in forwards(stream)] == [[30], [30], [30]]


def test_prefill_budget_never_stops_the_first_prompt():
    stream = run([request("a", prompt=50, output=1)], chunk_tokens=None, max_prefill_tokens=10)
    assert [batch_lens(forward) for forward in forwards(stream)] == [[50]]


def test_decodes_wait_for_prompts():
    stream = run([request("a", prompt=4, output=9), request("b", at=0.06, prompt=8, output=2)])
    modes = [forward.mode for forward in forwards(stream)]
    assert modes == ["extend", "decode", "decode", "decode", "extend", *["decode"] * 5]
    assert rids(stream)[4:6] == [["b"], ["a", "b"]]


def test_mixed_chunks_take_decodes_along():
    requests = [request("a", prompt=4, output=9), request("b", at=0.03, prompt=40, output=2)]
    stream = run(requests, mixed_chunk=True, chunk_tokens=16)
    mixed = [forward for forward in forwards(stream) if forward.mode == "mixed"]
    assert rids(stream)[3] == ["b", "a"]
    # a's token counts against the chunk of 16; b's first part is cut to a page, a further one is not
    assert [batch_lens(forward) for forward in mixed] == [[12, 1], [15, 1], [13, 1]]
    assert [forward.mode for forward in forwards(stream)][:3] == ["extend", "decode", "decode"]


def test_rows_limit_what_runs():
    stream = run([request(str(number), prompt=4, output=3) for number in range(5)], max_running_requests=2)
    assert max(len(batch) for batch in rids(stream)) == 2
    assert [event.rid for event in only(stream, ev.Bind)] == ["0", "1", "2", "3", "4"]
    # rows are taken from the end
    assert only(stream, ev.Bind)[0].row == 2


def test_cached_prefix_is_not_computed_again():
    twins = [request("a", prompt=16, blocks=[1, 2]), request("b", at=9.0, prompt=20, blocks=[1, 2, 3])]
    stream = run(twins)
    (share,) = only(stream, ev.Share)
    assert (share.rid, share.at, share.slots.tolist()) == ("b", 0, list(range(4, 20)))
    prompts = [forward for forward in forwards(stream) if forward.mode == "extend"]
    assert [(forward.prefix, batch_lens(forward)) for forward in prompts] == [([0], [16]), ([16], [4])]
    assert not only(run(twins, prefix_cache=False), ev.Share)


def test_outputs_are_cached_with_the_prompt_they_follow():
    stream = run([request("a", prompt=6, output=9)])
    # 14 tokens have slots: one page of the prompt, then two more that outputs have filled
    assert [(event.at, event.slots.size) for event in only(stream, ev.Publish)] == [(0, 4), (4, 8)]


def test_row_given_back_last_is_taken_first():
    requests = [request("a", prompt=4, output=9), *(request(n, at=0.01, prompt=4, output=2) for n in "bc")]
    stream = run(requests, max_running_requests=3)
    late = run([*requests, request("d", at=1.0, prompt=4)], max_running_requests=3)
    assert {event.rid: event.row for event in only(stream, ev.Bind)} == {"a": 3, "b": 2, "c": 1}
    # b and c end together, then a
    assert only(late, ev.Bind)[-1].row == 3


def test_one_token_is_always_left_to_compute():
    twins = [request("a", prompt=16, blocks=[1, 2]), request("b", at=9.0, prompt=16, blocks=[1, 2])]
    stream = run(twins)
    assert only(stream, ev.Share)[0].slots.size == 12
    # b computed the last page again; the cache keeps its own, and b's row is pointed to that
    again = only(stream, ev.Share)[1]
    assert (again.rid, again.at, again.slots.tolist()) == ("b", 12, [16, 17, 18, 19])


def test_row_is_pointed_to_the_caches_slots_before_the_duplicates_are_freed():
    twins = [
        request("a", prompt=18, output=3, blocks=[1, 2]),
        request("b", prompt=18, output=3, blocks=[1, 2]),
    ]
    stream = run(twins)
    at = next(index for index, event in enumerate(stream) if type(event) is ev.Share)
    share, free = stream[at : at + 2]
    assert (share.rid, share.at, share.slots.size) == ("b", 0, 16)
    assert (type(free), free.by, free.slots.size) == (ev.Free, "b", 16)
    assert not set(share.slots.tolist()) & set(free.slots.tolist())


def test_idle_time_is_skipped():
    stream = run([request("a", prompt=4, output=1), request("b", at=100.0, prompt=4, output=1)])
    assert [forward.t for forward in forwards(stream)] == [0.0, 100.0]


def test_time_follows_the_cost_of_each_forward():
    stream = run(
        [request("a", prompt=50, output=3)],
        chunk_tokens=None,
        costs=CostModel(prefill_token_s=0.001, decode_step_s=0.5),
    )
    assert [forward.t for forward in forwards(stream)] == [0.0, 0.05, 0.55]
    assert only(stream, ev.End)[0].t == 1.05


def test_batches_are_padded_to_captured_graphs():
    requests = [request(str(number), prompt=4, output=3) for number in range(3)]
    stream = run(requests, graph_lanes=(4, 1))
    assert [forward.width for forward in forwards(stream)] == [None, 4, 4]
    assert [forward.width for forward in forwards(run(requests, graph_lanes=(2, 3)))] == [None] * 3
    assert [forward.width for forward in forwards(run(requests, graph_lanes=(2,)))] == [None] * 3


def test_decode_that_finds_no_room_is_retracted_and_comes_back():
    # 13 pages of 4: all three find room for prompt and output when they come, together they don't
    requests = [request(name, at=number * 0.03, prompt=8, output=12) for number, name in enumerate("abc")]
    stream = run(requests, pool_slots=56, row_width=32, conservativeness=0)
    ends = [(event.rid, event.why) for event in only(stream, ev.End)]
    assert ends == [("c", "retract"), ("a", "done"), ("b", "done"), ("c", "done")]
    # its prompt is computed again, and with it what it had generated
    again = forwards(stream)[max(index for index, batch in enumerate(rids(stream)) if batch == ["c"])]
    assert len(only(stream, ev.Truth)) == 3
    assert [event.rid for event in only(stream, ev.Bind)] == ["a", "b", "c", "c"]
    assert again.prefix[0] + batch_lens(again)[0] > 8


def test_room_for_outputs_is_reserved():
    requests = [request("a", prompt=12, output=8), request("b", prompt=12, output=8)]
    stream = run(requests, pool_slots=36, row_width=32, conservativeness=2)
    assert [event.why for event in only(stream, ev.End)] == ["done", "done"]
    assert max(len(batch) for batch in rids(stream)) == 1


def test_half_done_prompt_and_decodes_that_fill_the_pool_all_end():
    # the decodes grow while d's prompt goes on in small chunks, until there is no page for any of them
    requests = [request(name, prompt=8, output=24) for name in "abc"]
    requests.append(request("d", at=0.15, prompt=60, output=12))
    stream = run(requests, pool_slots=140, row_width=80, chunk_tokens=8, conservativeness=0, mixed_chunk=True)
    ends = [(event.rid, event.why) for event in only(stream, ev.End)]
    assert sorted(rid for rid, why in ends if why == "done") == ["a", "b", "c", "d"]
    assert "retract" in [why for _, why in ends]


def test_verify_writes_drafts_and_keeps_the_accepted():
    stream = run([request("a", prompt=8, output=9)], draft_tokens=3, accept_percent=100, expect_tokens=True)
    tokens = only(stream, ev.Truth)[0].tokens
    first, second, third = forwards(stream)[1:]
    assert (first.mode, first.prefix, first.lens, first.accepted) == ("verify", [8], [3], [3])
    assert first.tokens == first.expect == tokens[8:11]
    # each verify keeps 3 and samples one more: 1 + 3 + 3 + 2 tokens
    assert (second.prefix, second.accepted) == ([11], [3])
    assert (third.prefix, third.accepted) == ([14], [2])
    assert third.tokens[:2] == tokens[14:16]


def test_rejected_drafts_are_written_over():
    stream = run([request("a", prompt=8, output=3)], draft_tokens=4, accept_percent=0)
    tokens = only(stream, ev.Truth)[0].tokens
    first, second = forwards(stream)[1:]
    assert (first.prefix, first.accepted, second.prefix) == ([8], [1], [9])
    assert first.tokens[0] == tokens[8]
    assert first.tokens[1] != tokens[9]
    assert second.slots.tolist()[:3] == first.slots.tolist()[1:]


def test_window_slots_are_unmapped_behind_the_window():
    stream = run([request("a", prompt=4, output=21)], window=8, window_slots=64)
    gone = [event for event in only(stream, ev.SwaMap) if not event.swa.any()]
    # the prompt's page is cached and keeps its window slots until its owner's own pages are gone
    assert gone[0].full.tolist() == [8, 9, 10, 11]
    (alone,) = [forward for forward in forwards(stream) if forward.prefix == [16]]
    assert stream.index(gone[0]) < stream.index(alone)


def test_window_slides_between_the_chunks_of_a_prompt():
    stream = run(
        [request("a", prompt=32, output=1)], window=8, window_slots=64, chunk_tokens=16, prefix_cache=False
    )
    gone = [event.full.tolist() for event in only(stream, ev.SwaMap) if not event.swa.any()]
    # the second chunk starts at 16 and reads 8 to 15; the rest goes with the request
    assert gone == [list(range(4, 12)), list(range(12, 36))]


def test_window_slots_are_reused():
    stream = run([request("a", prompt=4, output=80)], window=8, window_slots=112, prefix_cache=False)
    mapped = [slot for event in only(stream, ev.SwaMap) for slot in event.swa.tolist() if slot]
    assert len(mapped) > len(set(mapped))


def test_pages_can_be_mapped_ahead():
    stream = run([request("a", prompt=6, output=4)], map_pages=True)
    assert [(event.at, event.slots.tolist()) for event in only(stream, ev.Map)] == [
        (0, list(range(4, 12))),
        (8, [12, 13, 14, 15]),
    ]
    assert all(forward.slots is None for forward in forwards(stream))


def test_mapped_pages_end_with_the_row():
    stream = run([request("a", prompt=6, output=1)], map_pages=True, row_width=6)
    assert only(stream, ev.Map)[0].slots.tolist() == [4, 5, 6, 7, 8, 9]


def test_steps_can_be_limited():
    stream = run([request("a", prompt=4, output=50), request("b", at=9.0)], max_steps=5, sweep_interval=2)
    assert len(forwards(stream)) == 5
    assert [(event.rid, event.why) for event in only(stream, ev.End)] == [("a", "cancel")]
    # after forwards 2 and 4, and at the end
    assert len(only(stream, ev.Sweep)) == 3
    assert type(stream[-1]) is ev.Sweep


def test_half_done_prompt_is_cancelled_too():
    stream = run([request("a", prompt=90, output=5)], max_steps=1, chunk_tokens=16)
    assert [(event.rid, event.why) for event in only(stream, ev.End)] == [("a", "cancel")]


def test_requests_are_read_when_their_time_comes():
    endless = (request(str(number), at=number * 1.0) for number in itertools.count())
    stream = simulate(endless, SimConfig(pool_slots=1024))[1]
    assert len(list(itertools.islice(stream, 1000))) == 1000


@pytest.mark.parametrize("settings", [{}, {"mixed_chunk": True}, {"draft_tokens": 3, "chunk_tokens": 16}])
def test_same_input_same_bytes(settings):
    requests = [request(str(number), at=number * 0.02, prompt=9 + number, output=20) for number in range(12)]
    first, second = ([encode_event(event) for event in run(requests, **settings)] for _ in range(2))
    assert first == second
    assert first != [encode_event(event) for event in run(requests, seed=1, **settings)]


@pytest.mark.parametrize(
    ("requests", "settings", "message"),
    [
        (
            [request("big", prompt=200, output=9)],
            {"row_width": 207},
            "request big needs 208 page-table columns, a row has 207",
        ),
        (
            [request("big", prompt=200, output=9)],
            {"row_width": 500, "pool_slots": 208},
            "request big needs 52 pages of 4 slots, the pool has 51",
        ),
        (
            [request("big", prompt=200, output=9)],
            {"window": 8, "window_slots": 64},
            "request big needs 52 pages of 4 slots, the pool has 15",
        ),
        (
            [request("a", at=2.0), request("b", at=1.5)],
            {},
            "request b arrives at 1.5 s, after one that arrives at 2.0 s",
        ),
    ],
    ids=["row", "pool", "window", "order"],
)
def test_requests_that_can_never_be_served(requests, settings, message):
    with pytest.raises(InputError) as caught:
        run(requests, **settings)
    assert str(caught.value) == message


def test_request_that_just_fits_is_served():
    exact = {"row_width": 208, "pool_slots": 212}
    stream = run([request("big", prompt=200, output=9)], **exact)
    assert [event.why for event in only(stream, ev.End)] == ["done"]
