import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.trace.events import Source

WINDOW = {"window": 8, "window_slots": 64}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page_size": 24, "pool_slots": 1000}, "the page size 24 does not divide the pool of 1,000 slots"),
        (
            {"page_size": 16, "pool_slots": 16},
            "the pool has 16 slots, at least 2 pages of 16 are needed: page 0 is padding",
        ),
        ({"chunk_tokens": 100}, "a prefill chunk of 100 tokens is no multiple of the page size 16"),
        (
            {"window": 8, "window_slots": 65},
            "the page size 16 does not divide the window pool of 65 slots",
        ),
        (
            {"window_slots": 64},
            "a window pool or a byte source for it needs a window of at least 1 token",
        ),
        (
            {"sources": (Source(name="k", bytes_per_slot=16, hashed_bytes=16, group="swa"),)},
            "a window pool or a byte source for it needs a window of at least 1 token",
        ),
        (
            {"mixed_chunk": True, "draft_tokens": 2},
            "mixed chunks and draft tokens can't be combined, as in SGLang",
        ),
        (
            {"sources": (Source(name="k", bytes_per_slot=24, hashed_bytes=16),)},
            "byte source `k` hashes 16 of 24 bytes a slot, multiples of 16 are needed and no more hashed "
            "than there are",
        ),
        (
            {"sources": (Source(name="k", bytes_per_slot=16, hashed_bytes=32),)},
            "byte source `k` hashes 32 of 16 bytes a slot, multiples of 16 are needed and no more hashed "
            "than there are",
        ),
        (
            {"max_running_requests": 0},
            "`max_running_requests` is 0, a number from 1 to 1,048,576 is needed",
        ),
        ({"page_size": True}, "`page_size` is 1, a number from 1 to 2,147,483,647 is needed"),
        ({"chunk_tokens": 0}, "`chunk_tokens` is 0, a number from 1 to 2,147,483,647 is needed"),
        ({"graph_lanes": (4, 0)}, "`graph_lanes` is 0, a number from 1 to 2,147,483,647 is needed"),
        ({"conservativeness": -1.0}, "`conservativeness` is -1.0, a number from 0 on is needed"),
        ({"max_num_seqs": 0}, "`max_num_seqs` is 0, a number from 1 to 1,048,576 is needed"),
        (
            {"max_running_requests": 999_999_999},
            "`max_running_requests` is 999,999,999, a number from 1 to 1,048,576 is needed",
        ),
        (
            {"page_size": 1, "pool_slots": 2_000_000_000},
            "the pool has 2,000,000,000 pages of 1, the scheduler model has room for 67,108,864",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(UsageError) as caught:
        SimConfig(**settings)
    assert str(caught.value) == message


def test_header_says_what_the_run_uses():
    header = SimConfig(pool_slots=160, row_width=64, max_running_requests=3, **WINDOW).header()
    assert (header.pool.slots, header.pool.page_size, header.pool.rows) == (160, 16, 4)
    assert [(group.kind, group.window, group.slots) for group in header.groups] == [
        ("full", 0, None),
        ("swa", 8, 64),
    ]
    assert header.capacities is None


def test_capacities_follow_the_servers_rule():
    plain = SimConfig(pool_slots=160, max_running_requests=3, graph_lanes=(2, 8)).with_capacities().capacities
    assert plain is not None
    # lanes: the larger of rows and graphs; entries: the smaller of both prefill budgets; verify: 3 pools
    assert plain.write_req_capacity == 8
    assert plain.write_entry_capacity == 8192
    assert plain.verify_capacity == 3 * 144
    drafts = SimConfig(max_running_requests=3000, draft_tokens=4, chunk_tokens=None).with_capacities()
    assert drafts.capacities is not None
    assert drafts.capacities.write_entry_capacity == 16_384
    many = SimConfig(max_running_requests=3000, draft_tokens=8).with_capacities().capacities
    assert many is not None
    assert many.write_entry_capacity == 24_000
