"""SGLang 0.5.23's rules for what a forward holds, one test a rule, and the batches that break a canary's capacities."""

import pytest

from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.lanes import Lane
from kvcanary_cli.sim.queues import retraction_order
from kvcanary_cli.sim.scheduler import simulate
from kvcanary_cli.trace import events as ev
from tests.replay.driving import replay_events
from tests.sim.made import batch_lens, forwards, only, request, run


def lens(requests, **settings):
    return [batch_lens(forward) for forward in forwards(run(requests, **settings))]


def prompts(*lengths, output=1):
    return [request(f"r{number}", prompt=length, output=output) for number, length in enumerate(lengths)]


class TestTwoBudgets:
    """`max_prefill_tokens` stops admission, `chunk_tokens` cuts."""

    def test_first_prompt_is_cut_by_the_chunk_and_never_by_the_prompt_budget(self):
        assert lens(prompts(60), chunk_tokens=64, max_prefill_tokens=16) == [[60]]
        assert lens(prompts(60), chunk_tokens=32, max_prefill_tokens=16) == [[32], [28]]

    def test_prompt_joins_while_anything_of_the_prompt_budget_is_left(self):
        # 16 and 16 leave 1 of 33, so the third prompt joins with all of its 24
        assert lens(prompts(16, 16, 24), chunk_tokens=64, max_prefill_tokens=33) == [[16, 16, 24]]
        assert lens(prompts(16, 16, 24), chunk_tokens=64, max_prefill_tokens=32) == [[16, 16], [24]]

    def test_last_prompt_is_cut_to_what_is_left_of_the_chunk(self):
        assert lens(prompts(40, 40), chunk_tokens=64, max_prefill_tokens=1000) == [[40, 24], [16]]

    def test_prompts_are_charged_in_whole_pages(self):
        # 13 and 13 are charged as 16 and 16 of 32: nothing is left, although 6 tokens are
        assert lens(prompts(13, 13, 6), chunk_tokens=64, max_prefill_tokens=32) == [[13, 13], [6]]
        assert lens(prompts(29, 6), chunk_tokens=32, max_prefill_tokens=1000) == [[29], [6]]

    def test_first_part_ends_at_a_page(self):
        # 14 of the chunk are left, which are 3 pages
        assert lens([*prompts(18), request("b", prompt=30, output=1)], chunk_tokens=32)[0] == [18, 12]

    def test_less_than_a_page_of_the_chunk_is_left_unused(self):
        # with five decodes on board, 3 of a chunk of 8 are left: the sixth prompt waits until one of them ends
        requests = [request(f"r{number}", prompt=4, output=40) for number in range(6)]
        stream = run(requests, chunk_tokens=8, mixed_chunk=True)
        assert max(len(forward.rows) for forward in forwards(stream)) == 5
        kinds = [type(event) for event in stream if type(event) in (ev.Bind, ev.End)]
        assert kinds[:7] == [ev.Bind] * 5 + [ev.End] * 2

    def test_without_chunks_a_prompt_that_would_use_the_budget_up_waits(self):
        assert lens(prompts(16, 12), chunk_tokens=None, max_prefill_tokens=29) == [[16, 12]]
        assert lens(prompts(16, 12), chunk_tokens=None, max_prefill_tokens=28) == [[16], [12]]

    def test_without_chunks_the_first_prompt_is_taken_whatever_its_length(self):
        assert lens(prompts(300, 4), chunk_tokens=None, max_prefill_tokens=16) == [[300], [4]]

    def test_riding_decodes_are_charged_to_both_budgets(self):
        requests = [
            request("a", prompt=4, output=9),
            *[request(n, at=0.03, prompt=12, output=2) for n in "bc"],
        ]
        settings = {"mixed_chunk": True, "chunk_tokens": 64}
        assert [12, 12, 1] in lens(requests, max_prefill_tokens=14, **settings)
        # 13 less one for the decode are used up by the first prompt
        assert [12, 12, 1] not in lens(requests, max_prefill_tokens=13, **settings)

    def test_prompts_in_a_forward_can_be_limited(self):
        assert lens(prompts(8, 8, 8), prefill_max_requests=2) == [[8, 8], [8]]


def over_capacity(requests, **settings):
    """Tokens of each forward that a canary with the capacities of this server refuses, by our own replay."""
    config = SimConfig(
        page_size=4, max_running_requests=4, **{"pool_slots": 2048, "row_width": 1024, **settings}
    )
    header, stream = simulate(requests, config.with_capacities())
    return [violation.need for violation in replay_events(header, stream).result.capacity_violations]


class TestBatchesThatBreakCapacities:
    """write_entry_capacity is max(lanes * drafts, min(prompt budget, chunk)); these forwards pass it."""

    def test_chunk_larger_than_the_prompt_budget_and_one_long_prompt(self):
        assert over_capacity(prompts(128), chunk_tokens=128, max_prefill_tokens=64) == [128]

    def test_several_prompts_that_pass_the_prompt_budget_together(self):
        # each is small enough; the third joins because 4 tokens of the budget are left
        requests = prompts(30, 28, 40)
        assert over_capacity(requests, chunk_tokens=128, max_prefill_tokens=64) == [98]

    def test_no_chunks_and_a_prompt_longer_than_the_budget(self):
        assert over_capacity(prompts(200), chunk_tokens=None, max_prefill_tokens=64) == [200]

    def test_chunk_no_larger_than_the_budget_is_never_passed(self):
        requests = prompts(30, 28, 40, 128, 77, 64, 5)
        assert over_capacity(requests, chunk_tokens=64, max_prefill_tokens=64) == []
        mixed = [request(str(number), at=number * 0.01, prompt=50, output=9) for number in range(9)]
        assert over_capacity(mixed, chunk_tokens=64, max_prefill_tokens=64, mixed_chunk=True) == []

    def test_enough_lanes_make_room_for_what_passes_the_budget(self):
        drafts = {"chunk_tokens": 128, "max_prefill_tokens": 64, "draft_tokens": 32}
        assert over_capacity(prompts(128), **drafts) == []


class TestRoom:
    """A prompt joins if the pool holds it, its whole output and a page, beside what was promised to others."""

    def test_prompt_output_and_a_page_have_to_fit(self):
        requests = [request("a", prompt=8, output=20), request("b", at=0.01, prompt=8, output=20)]
        # a has 3 pages by then; b needs more than 8 + 20 + 4 tokens beside them
        assert [1, 1] in lens(requests, pool_slots=4 + 12 + 36, row_width=64, conservativeness=0)
        assert [1, 1] not in lens(requests, pool_slots=4 + 12 + 32, row_width=64, conservativeness=0)

    def test_share_of_the_outstanding_output_is_held_back(self):
        requests = [request("a", prompt=8, output=20), request("b", at=0.01, prompt=8, output=8)]
        # 18 tokens of a are outstanding and 13 of them held back beside b's 8 + 8 + 4
        assert [1, 1] in lens(requests, pool_slots=4 + 12 + 36, row_width=64)
        assert [1, 1] not in lens(requests, pool_slots=4 + 12 + 32, row_width=64)
        assert [1, 1] in lens(requests, pool_slots=4 + 12 + 32, row_width=64, conservativeness=0.5)

    def test_server_plans_with_what_the_client_asked_for(self):
        requests = [request("a", prompt=8, output=4), request("b", at=0.01, prompt=8, output=4)]
        settings = {"pool_slots": 64, "row_width": 64, "conservativeness": 0}
        assert [1, 1] in lens(requests, **settings)
        assert [1, 1] not in lens(requests, max_new_tokens=40, **settings)

    def test_refusal_for_want_of_room_holds_until_a_request_ends(self):
        # b is too long; c would fit at any time, but nobody is looked at before a has ended
        requests = [
            request("a", prompt=8, output=6),
            request("b", at=0.01, prompt=60, output=4),
            request("c", at=0.06, prompt=4, output=2),
        ]
        stream = run(requests, pool_slots=80, row_width=76)
        ends = [event.rid for event in only(stream, ev.End)]
        assert ends[0] == "a"
        first = [event.rid for event in only(stream, ev.Bind)]
        assert first == ["a", "b", "c"]

    def test_request_that_fills_the_pool_is_served_when_it_is_alone(self):
        stream = run([request("a", prompt=20, output=21)], pool_slots=44, row_width=40)
        assert [event.why for event in only(stream, ev.End)] == ["done"]


class TestOrder:
    @pytest.mark.parametrize(
        ("settings", "order"),
        [
            ({}, ["a", "b", "c", "d"]),
            ({"policy": "lof"}, ["a", "c", "d", "b"]),
            ({"priorities": True}, ["a", "d", "b", "c"]),
            ({"policy": "lof", "priorities": True}, ["a", "d", "c", "b"]),
        ],
        ids=["fcfs", "lof", "priority", "both"],
    )
    def test_waiting_requests_are_looked_at_in_the_order_of_the_policy(self, settings, order):
        requests = [
            request("a", prompt=8, output=12),
            request("b", at=0.01, prompt=8, output=2, priority=1),
            request("c", at=0.01, prompt=8, output=9, priority=1),
            request("d", at=0.01, prompt=8, output=5, priority=0),
        ]
        stream = run(requests, max_running_requests=1, preempt_above=None, **settings)
        assert [event.rid for event in only(stream, ev.Bind)] == order

    def test_longest_cached_prefix_goes_first(self):
        requests = [
            request("a", prompt=40, output=9, blocks=[1, 2, 3, 4, 5]),
            request("b", at=0.01, prompt=40, output=1, blocks=[7, 8, 9]),
            request("c", at=0.01, prompt=40, output=1, blocks=[1, 2, 3, 4]),
        ]
        by = {
            policy: [
                event.rid for event in only(run(requests, max_running_requests=1, policy=policy), ev.Bind)
            ]
            for policy in ("fcfs", "lpm")
        }
        assert by == {"fcfs": ["a", "b", "c"], "lpm": ["a", "c", "b"]}

    def test_prompts_that_start_alike_come_one_after_the_other(self):
        # c starts like b, which nobody has computed yet, so d overtakes it and c finds b's prefix
        blocks = {"b": [1, 2, 3, 4, 5], "c": [1, 2, 3, 4, 6], "d": [9, 8, 7, 6, 5]}
        requests = [request(rid, prompt=40, output=1, blocks=ids) for rid, ids in blocks.items()]
        stream = run(requests, policy="lpm", prefill_max_requests=2)
        assert [event.rid for event in only(stream, ev.Bind)] == ["b", "d", "c"]
        assert [(event.rid, event.slots.size) for event in only(stream, ev.Share)] == [("c", 32)]


class TestPreemption:
    REQUESTS = (
        request("a", prompt=8, output=30, priority=20),
        request("b", prompt=8, output=30, priority=40),
        request("c", at=0.1, prompt=8, output=2, priority=0),
    )

    def ends(self, **settings):
        stream = run(list(self.REQUESTS), max_running_requests=2, priorities=True, **settings)
        return [(event.rid, event.why) for event in only(stream, ev.End)]

    def test_least_urgent_request_gives_its_place_to_a_more_urgent_one(self):
        assert self.ends(preempt_above=10) == [("b", "retract"), ("c", "done"), ("a", "done"), ("b", "done")]

    @pytest.mark.parametrize("above", [None, 40])
    def test_small_difference_or_none_preempts_nobody(self, above):
        assert ("b", "retract") not in self.ends(preempt_above=above)


class TestRetraction:
    def retracted(self, requests, **settings):
        settings = {"pool_slots": 84, "row_width": 64, "conservativeness": 0, **settings}
        return [event.rid for event in only(run(requests, **settings), ev.End) if event.why == "retract"]

    def test_request_with_the_least_output_goes_first(self):
        requests = [request(name, at=number * 0.06, prompt=8, output=24) for number, name in enumerate("abc")]
        assert self.retracted(requests, pool_slots=84)[0] == "c"

    def test_order_is_most_output_then_shortest_prompt_then_the_batch(self):
        lanes = [
            Lane(request(rid, prompt=prompt), reach=99, asked=50, generated=generated)
            for rid, prompt, generated in [("a", 8, 3), ("b", 12, 3), ("c", 8, 3), ("d", 50, 9), ("e", 4, 1)]
        ]
        kept = [lane.rid for lane in retraction_order(lanes, priorities=False)]
        assert kept == ["d", "a", "c", "b", "e"]

    def test_priority_may_count_before_the_output(self):
        requests = [
            request(name, at=number * 0.06, prompt=8, output=24, priority=5 - number)
            for number, name in enumerate("abc")
        ]
        assert self.retracted(requests, retraction="priority")[0] == "a"

    def test_retracted_request_waits_behind_those_that_are_there(self):
        requests = [request(name, at=number * 0.06, prompt=8, output=24) for number, name in enumerate("abc")]
        requests.append(request("d", at=0.13, prompt=8, output=24))
        stream = run(requests, pool_slots=84, row_width=64, conservativeness=0)
        binds = [event.rid for event in only(stream, ev.Bind)]
        assert binds[:3] == ["a", "b", "c"]
        assert binds[3] == "d"
        assert "c" in binds[4:]


class TestMixed:
    def test_decodes_sit_out_where_the_prompt_leaves_too_few_pages(self):
        # all four decodes are at a page border when b comes; b takes 4 of the 7 pages that are left
        requests = [request(f"r{number}", prompt=8, output=6) for number in range(4)]
        requests.append(request("b", at=0.09, prompt=16, output=1))
        stream = run(requests, pool_slots=80, row_width=32, mixed_chunk=True, conservativeness=0)
        batches = [(forward.mode, batch_lens(forward)) for forward in forwards(stream)]
        assert batches[5:7] == [("extend", [16]), ("decode", [1, 1, 1, 1])]
        assert {event.why for event in only(stream, ev.End)} == {"done"}

    def test_prompts_stand_before_the_decodes(self):
        requests = [request("a", prompt=4, output=9), request("b", at=0.03, prompt=12, output=5)]
        batches = [
            forward for forward in forwards(run(requests, mixed_chunk=True)) if forward.mode == "mixed"
        ]
        assert [batch_lens(forward) for forward in batches] == [[12, 1]]


def test_time_between_turns_starts_at_the_end_of_the_turn_before():
    turns = [
        request("a", prompt=8, output=5, session="s"),
        request("b", prompt=8, output=2, session="s", after="a", delay_s=3.0),
        request("c", at=60.0, prompt=8, output=2, session="s", after="b", delay_s=3.0),
    ]
    stream = run(turns)
    ended = {event.rid: event.t for event in only(stream, ev.End)}
    bound = {event.rid: event.t for event in only(stream, ev.Bind)}
    assert bound["b"] == pytest.approx(ended["a"] + 3.0)
    assert bound["c"] == 60.0


def test_recorded_prompt_tokens_are_what_is_computed_and_cached():
    tokens = tuple(range(100, 120))
    pair = [
        request(rid, at=at, prompt=20, output=2, prompt_tokens=tokens) for rid, at in (("a", 0), ("b", 9))
    ]
    stream = run(pair)
    assert only(stream, ev.Truth)[0].tokens[:20] == list(tokens)
    found = only(stream, ev.Share)[0]
    assert (found.rid, found.slots.size) == ("b", 16)
