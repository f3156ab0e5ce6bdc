import json
from pathlib import Path

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.formats import open_requests, sniff
from tests.trace.request_files import changed, notes, read, refusal

SAMPLES = Path(__file__).parents[1] / "traces/weka"
LOCAL = "block ids are local: they mean nothing in another file"


def request(t, tokens=130, output=5, ids=(1, 2), **changes):
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": output, "hash_ids": list(ids), **changes}


def agent(t, *requests):
    return {"t": t, "type": "subagent", "agent_id": "helper", "requests": list(requests)}


def session(*requests, **changes):
    own = [found for found in requests if found["type"] != "subagent"]
    subs = [found for entry in requests if entry["type"] == "subagent" for found in entry["requests"]]
    base = {
        "id": "x1",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": list(requests),
    }
    return changed(base | {"totals": totals(own, subs, len(requests) - len(own))}, **changes)


def totals(own, subs, agents):
    def sums(rows):
        return {"input": sum(row["in"] for row in rows), "output": sum(row["out"] for row in rows)}

    parts = {"parent_tokens": own, "subagent_tokens": subs, "combined_tokens": own + subs}
    return {**{name: sums(rows) for name, rows in parts.items()}, "subagent_count": agents}


@pytest.mark.parametrize(("name", "records", "longest"), [("0504", 3, 11_408), ("0022", 7, 44_237)])
def test_samples(name, records, longest):
    trace = open_requests(str(SAMPLES / f"trace_{name}.json"))
    assert (trace.format.name, trace.records, trace.longest) == ("weka", records, longest)
    assert (trace.block_size, trace.moved_ids, notes(trace)) == (64, 0, {LOCAL: 1})


def test_object_over_several_lines(tmp_path):
    assert read(tmp_path, json.dumps(session(request(0.0)), indent=1)).records == 1


def test_times_inside_a_subagent_are_its_own(tmp_path):
    trace = read(tmp_path, session(request(0.0), agent(9.0, request(0.0), request(2.5)), request(10.0)))
    assert [(found.arrival_s, found.session) for found in trace] == [
        (0, "x1"),
        (9, "x1/helper"),
        (10, "x1"),
        (11.5, "x1/helper"),
    ]
    assert notes(trace)["times inside a subagent are its own"] == 1
    assert trace.reordered == 0


def test_times_inside_a_subagent_that_are_the_sessions(tmp_path):
    trace = read(tmp_path, session(request(0.0), agent(9.0, request(9.0), request(11.0))))
    assert [found.arrival_s for found in trace] == [0, 9, 11]
    assert notes(trace)["times inside a subagent are the session's"] == 1


def test_models_share_nothing(tmp_path):
    first, second = read(tmp_path, session(request(0.0), request(1.0, model="n")))
    assert not set(first.block_ids) & set(second.block_ids)


def test_output_of_no_tokens_and_missing_totals_are_noted(tmp_path):
    trace = read(tmp_path, session(request(0.0, output=0), totals=..., hash_id_scope="global"))
    assert notes(trace) == {
        "the output has 0 tokens": 1,
        "no totals, so nothing to check the sums against": 1,
    }


def test_block_size_of_the_file_holds(tmp_path):
    message = "t.jsonl: $.block_size: blocks of 64 tokens, `--block-size` says 16"
    assert refusal(tmp_path, session(request(0.0)), block_size=16) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            session(request(0.0), totals=totals([request(0.0, tokens=131)], [], 0)),
            "$.totals.parent_tokens.input: 131 tokens are stated, the requests have 130",
        ),
        (
            session(request(0.0), totals={"combined_tokens": {"input": 130, "output": 6}}),
            "$.totals.combined_tokens.output: 6 tokens are stated, the requests have 5",
        ),
        (
            session(request(0.0), totals=totals([request(0.0)], [], 1)),
            "$.totals.subagent_count: 1 subagents are stated, there are 0",
        ),
        (
            session(request(0.0, ids=(1, 2, 3, 4))),
            "$.requests[0].hash_ids: 4 block ids for 130 tokens, blocks of 64 make 2 or 3",
        ),
        (
            session(request(0.0), agent(1.0, request(0.0, type="x"))),
            '$.requests[1].requests[0].type: unknown type "x", s, n or subagent is expected',
        ),
        (session(request(0.0), hash_id_scope="both"), '$.hash_id_scope: "both" is neither local nor global'),
        (session(request(-1.0)), "$.requests[0].t: the time is -1.0 s, times begin at 0"),
        (session(request(0.0), id=...), '$: key "id" is missing'),
    ],
)
def test_refusals(tmp_path, data, message):
    assert refusal(tmp_path, data) == f"t.jsonl: {message}"


def test_two_sessions_must_not_be_joined(tmp_path):
    assert "more than one object, one session a file" in refusal(tmp_path, *[session(request(0.0))] * 2)


def test_cut_file(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(session(request(0.0)))[:-20])
    assert sniff(str(path)) == "weka"
    with pytest.raises(InputError, match="not JSON"):
        open_requests(str(path))
