"""Every form of file, told by content, and files with damage."""

from __future__ import annotations

import gzip
import json

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.kvevents.events import Batch, Cleared, Gap, Malformed, Removed, Restart, Source, Stored
from kvcanary_cli.kvevents.lines import EventFile
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.formats import KV_EVENTS, open_requests, sniff
from tests.cli import ROOT
from tests.kvevents.streams import CLEARED, batches, removed, stored, write

LLM_D = sorted((ROOT / "tests" / "traces" / "llm-d").glob("*.json"))
DYNAMO = [
    '{"timestamp": 12, "event": {"worker_id": 3, "storage_tier": "device", "event": {"event_id": 0, "data": {"stored": '
    '{"parent_hash": null, "blocks": [{"block_hash": 18446744073709551609, "tokens_hash": 42}]}}, "dp_rank": 0}}}',
    '{"timestamp": 15, "event": {"worker_id": 3, "event": {"event_id": 1, "data": {"removed": {"block_hashes": '
    '[18446744073709551609]}}, "dp_rank": 0}}}',
    '{"timestamp": 20, "event": {"worker_id": 3, "event": {"event_id": 2, "data": "cleared", "dp_rank": 0}}}',
]
LAST = (1 << 64) - 7


def records(path, **options):
    return [record for _, _, record in EventFile([str(path)], **options)]


def test_batches_as_objects(tmp_path):
    line = {"ts": 1.5, "events": [stored([1], tokens=[5, 6])], "rank": 0}
    path = write(tmp_path / "a", [line])
    (batch,) = records(path)
    assert sniff(str(path)) == KV_EVENTS
    assert batch.events == [Stored(hashes=(1,), parent=None, tokens=[5, 6], block_size=2)]
    assert (batch.source, batch.seq, batch.ts) == (Source(rank=0), None, 1.5)


@pytest.mark.parametrize("time", ["1.5", "17e8", "null", "-1"])
def test_batches_as_arrays(tmp_path, time):
    path = tmp_path / "a"
    path.write_text(f'[{time}, [["BlockRemoved", [1]], ["AllBlocksCleared"]], null]\n[2, []]\n')
    first, second = records(path)
    assert sniff(str(path)) == KV_EVENTS
    assert (first.events, second.events) == ([Removed(hashes=(1,)), Cleared()], [])


def test_other_arrays_are_still_refused(tmp_path):
    path = tmp_path / "a"
    path.write_text('[{"timestamp": 1}]\n')
    with pytest.raises(InputError, match="is a JSON array, one object per line"):
        sniff(str(path))


def test_dynamos_recorder(tmp_path):
    path = tmp_path / "a"
    path.write_text("\n".join(DYNAMO) + "\n")
    first, second, third = records(path)
    assert sniff(str(path)) == KV_EVENTS
    assert first.events == [Stored(hashes=(LAST,), parent=None, contents=(42,))]
    assert (second.events, third.events) == ([Removed(hashes=(LAST,))], [Cleared()])
    assert (first.source, first.seq, first.ts) == (Source(rank=0, worker=3), 0, 0.012)
    assert str(first.source) == "3/0"


def test_dynamos_older_lines_lack_rank_and_tier(tmp_path):
    path = tmp_path / "a"
    path.write_text(
        '{"timestamp": 1, "event": {"worker_id": 3, "event": {"event_id": 4, "data": "cleared"}}}\n'
    )
    (batch,) = records(path)
    assert (batch.source, batch.seq) == (Source(worker=3), 4)


@pytest.mark.parametrize("path", LLM_D, ids=lambda path: path.stem)
def test_llm_d_captures(path):
    assert sniff(str(path)) == KV_EVENTS
    (batch,) = records(path)
    (event,) = batch.events
    shape = (len(event.hashes), len(event.tokens), event.block_size, event.parent, event.medium)
    assert shape == (25, 400, 16, None, "GPU")
    assert max(event.hashes) > 1 << 63
    assert event.is_plain == ("base" in path.name)


def test_llm_d_captures_are_copied_whole():
    assert [path.name for path in LLM_D] == ["kv_event_base.noprompt.json", "kv_event_lora.noprompt.json"]


def test_single_events_a_line(tmp_path):
    path = write(tmp_path / "a", [stored([1]), removed([1]), CLEARED])
    assert sniff(str(path)) == KV_EVENTS
    assert [type(record.events[0]) for record in records(path)] == [Stored, Removed, Cleared]


def test_notes_of_a_recording(tmp_path):
    lines = [
        {"gap": {"seq": [0, 4], "before": True}},
        *batches(stored([1]), first=5),
        {"malformed": {"seq": 6, "error": "is cut off", "bytes": 3, "start": "93cb3f"}},
        {"restart": {"seq": 0, "last": 6}},
        {"gap": {"seq": [0, 1], "before": False}},
    ]
    path = write(tmp_path / "a", lines)
    found = records(path)
    assert sniff(str(path)) == KV_EVENTS
    assert isinstance(found[1], Batch)
    assert [*found[:1], *found[2:]] == [
        Gap(0, 4, before=True),
        Malformed(6, "is cut off"),
        Restart(),
        Gap(0, 1),
    ]


def test_compressed_and_in_parts(tmp_path):
    first, second = batches(stored([1]), removed([1]))
    (tmp_path / "a.gz").write_bytes(gzip.compress(json.dumps(first).encode() + b"\n"))
    write(tmp_path / "b", [second])
    file = EventFile([str(tmp_path / "a.gz"), str(tmp_path / "b")])
    assert [(line, record.seq) for _, line, record in file] == [(1, 0), (1, 1)]
    assert (file.lines, file.forms) == (2, {"batch object": 2})


def test_a_bad_line_has_its_place_and_can_be_skipped(tmp_path):
    good = batches(stored([1]))[0]
    path = write(tmp_path / "a", [good, {"events": [["BlockStored", [1.5]]], "seq": 1}, good, {"what": 1}])
    with pytest.raises(LineError) as caught:
        records(path)
    assert str(caught.value).startswith(f"{path}:2: $.events[0].block_hashes[0]: a hash is a 64-bit integer")
    assert caught.value.hint == "`--skip-bad-lines` goes on after it"
    file = EventFile([str(path)], skip_bad_lines=True)
    assert len(list(file)) == 2
    assert file.bad_lines == [(str(path), 2), (str(path), 4)]


def test_a_last_line_that_is_cut_off(tmp_path):
    path = write(tmp_path / "a", batches(stored([1]), removed([1])))
    path.write_bytes(path.read_bytes()[:-9])
    file = EventFile([str(path)])
    assert len(list(file)) == 1
    assert file.truncated == (str(path), 2)


@pytest.mark.parametrize(
    "line",
    [
        '{"events": [], "seq": -1}',
        '{"events": [], "seq": "1"}',
        '{"event": {"worker_id": 1}}',
        '{"event": {"event": {"data": {}}}}',
        '{"event": {"event": {"data": {"stored": {"blocks": [1]}}}}}',
        '{"event": {"event": {"data": {"removed": {}}}}}',
        '{"event": {"worker_id": "a", "event": {"data": "cleared"}}}',
        '{"gap": {"seq": 1}}',
        "5",
        "{",
        '{"events": [[]]}',
    ],
)
def test_damage_is_an_input_error(tmp_path, line):
    path = tmp_path / "a"
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(InputError):
        records(path)


def test_a_request_trace_is_needed_where_one_is(tmp_path):
    path = write(tmp_path / "a", batches(stored([1])))
    with pytest.raises(InputError, match="is a KV event stream, a request trace is needed"):
        open_requests(str(path))
