from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.run import simulate_file
from kvcanary_cli.trace import events as ev
from tests.sim.made import only
from tests.sim.strict_ledger import check

EXAMPLE = Path(__file__).parents[2] / "docs/examples/mooncake-conversation.jsonl"


def write_trace(tmp_path, *rows):
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(row + "\n" for row in rows))
    return str(path)


def row(time=0, prompt=600, output=3, ids="[1, 2]"):
    return f'{{"timestamp": {time}, "input_length": {prompt}, "output_length": {output}, "hash_ids": {ids}}}'


def test_example_of_the_docs_is_served():
    model = simulate_file(str(EXAMPLE), "mooncake", limit_requests=6)
    assert model.header.pool.row_width == 8032  # the largest of the six has 8,030 tokens
    assert model.header.capacities.verify_capacity == 1_200_000
    stream = list(model.events)
    assert [event.why for event in only(stream, ev.End)] == ["done"] * 6
    # the first block of every conversation is the same
    assert [event.slots.size for event in only(stream, ev.Share)] == [512] * 5


def test_ownership_of_a_served_file(tmp_path):
    path = write_trace(tmp_path, row(), row(10, prompt=900), row(20))
    model = simulate_file(path, "mooncake")
    assert check(model.header, model.events).ended["done"] == ["req-1", "req-2", "req-3"]


def test_details_tell_file_and_settings(tmp_path):
    path = write_trace(
        tmp_path, row(5), row(3), '{"timestamp": 9, "input_length": 4, "output_length": 1, "x": 1}'
    )
    details = simulate_file(path, "mooncake", seed=4).details
    assert details["requests"] == 3
    assert details["longest_tokens"] == 603
    assert details["reordered"] == 1
    assert details["unknown_keys"] == {"x": 1}
    assert details["scheduler"]["seed"] == 4
    assert details["scheduler"]["row_width"] == 608


def test_settings_can_be_given(tmp_path):
    path = write_trace(tmp_path, row(), row(10))
    config = SimConfig(pool_slots=2048, row_width=1024, page_size=1, prefix_cache=False, chunk_tokens=None)
    model = simulate_file(path, "mooncake", config=config, seed=2)
    stream = list(model.events)
    assert model.header.pool.row_width == 1024
    assert not only(stream, ev.Publish)
    other = simulate_file(path, "mooncake", config=config, seed=3)
    assert only(stream, ev.Truth)[0].tokens != only(list(other.events), ev.Truth)[0].tokens


def test_bad_lines_can_be_skipped(tmp_path):
    path = write_trace(tmp_path, row(), row(prompt=0), row())
    with pytest.raises(InputError, match=r"requests\.jsonl:2"):
        simulate_file(path, "mooncake")
    model = simulate_file(path, "mooncake", skip_bad_lines=True)
    assert model.details["bad_lines"] == [2]
    assert [event.rid for event in only(list(model.events), ev.Bind)] == ["req-1", "req-3"]


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match="the scheduler model needs a request trace, this is trace-v1"):
        simulate_file(write_trace(tmp_path, row()), "trace-v1")
