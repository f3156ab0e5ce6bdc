"""Needs that are measured: peaks and their steps, what they put in place of bounds, and what they load."""

from __future__ import annotations

import json

import pytest

from kvcanary_cli.capacity.audit import audit
from kvcanary_cli.capacity.sizes import derive
from kvcanary_cli.capacity.workload import Peak, measure_file
from kvcanary_cli.errors import InputError
from tests.capacity.launches import request, setup

HEADER = {
    "ev": "header",
    "format": "kvcanary-trace",
    "version": 1,
    "pool": {"slots": 100_000, "page_size": 1, "rows": 700, "row_width": 40_000},
    "groups": [{"kind": "full"}, {"kind": "swa", "window": 100, "slots": 100_000}],
    "sources": [],
}


def forward(lanes: int, prefix: int, length: int, **more: object) -> dict[str, object]:
    rows = list(range(1, lanes + 1))
    return {"ev": "forward", "rows": rows, "prefix": [prefix] * lanes, "lens": [length] * lanes, **more}


def trace(tmp_path, *forwards: dict[str, object]) -> str:
    path = tmp_path / "t.jsonl"
    binds = [{"ev": "bind", "rid": f"r{row}", "row": row} for row in range(1, 601)]
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in (HEADER, *binds, *forwards)), encoding="utf-8"
    )
    return str(path)


def measured(path: str, *words: str, **options: str):
    found = setup(*words, **options)
    return measure_file(path, found, derive(found))


def audited(path: str, *words: str, env: dict[str, str] | None = None, **options: str):
    return audit(request(*words, env=env, **options), path)


def ids(result) -> set[str]:
    return {finding.rule.id for finding in result.findings}


def slots(number: int) -> dict[str, object]:
    """Slots of a forward, so that no row has to be mapped."""
    return {"slots": [{"n": 1}]} if number < 0 else {"slots": list(range(1, number + 1))}


def test_peaks_and_the_step_of_each(tmp_path):
    path = trace(
        tmp_path,
        forward(2, 50, 3, **slots(6)),
        forward(3, 300, 1, **slots(3)),
        forward(1, 0, 20, **slots(20)),
        forward(3, 300, 1, width=8, **slots(3)),
    )
    workload = measured(path)
    assert workload.steps == 4
    # the width of a graph counts as requests, the first of equal peaks is named
    assert workload.requests == Peak(8, 3)
    assert workload.tokens == Peak(20, 2)
    # a window group reads at most its window of each request
    assert dict(workload.verify) == {"full": Peak(900, 1), "swa": Peak(300, 1)}


def test_padding_needs_no_verify_entries(tmp_path):
    event = {"ev": "forward", "rows": [1, 0], "prefix": [7, 0], "lens": [1, 1], "slots": [1, 0]}
    workload = measured(trace(tmp_path, event))
    assert (workload.tokens, dict(workload.verify)["full"]) == (Peak(2, 0), Peak(7, 0))


def test_a_trace_without_forwards(tmp_path):
    with pytest.raises(InputError, match="the workload has no forward"):
        measured(trace(tmp_path))


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("hello\n", encoding="utf-8")
    with pytest.raises(InputError, match="the format is not known"):
        measured(str(path))


def test_a_measured_need_takes_the_place_of_a_bound(tmp_path):
    path = trace(tmp_path, forward(2, 50, 3, **slots(6)))
    words = ["--chunked-prefill-size", "32768"]
    assert "entry-chunk" in ids(audit(request(*words)))
    result = audited(path, *words)
    assert ids(result) == set()
    assert result.not_reached == ["entry-chunk"]
    row = next(row for row in result.capacities if row.name == "write entries")
    assert (row.status, row.need, row.rule, row.remark) == ("OK", 6, "need-entries", "need: 6 at step 0")


@pytest.mark.parametrize(
    ("event", "words", "env", "rule"),
    [
        (forward(1, 0, 8193, **slots(8193)), [], {}, "need-entries"),
        (forward(1, 0, 8192, **slots(8192)), [], {}, None),
        (forward(300, 1, 1, **slots(300)), ["--max-running-requests", "299"], {}, "need-requests"),
        (forward(300, 1, 1, **slots(300)), ["--max-running-requests", "300"], {}, None),
        (
            forward(512, 1, 1, **slots(512)),
            [],
            {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"},
            "need-token-ids",
        ),
        (forward(511, 1, 1, **slots(511)), [], {"SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT": "1"}, None),
    ],
)
def test_edges_and_fixes(tmp_path, event, words, env, rule):
    result = audited(trace(tmp_path, event), *words, env=env)
    assert ids(result) == (set() if rule is None else {rule})
    if rule is not None:
        assert result.fixes
        assert next(finding for finding in result.findings).hit.server_message


def test_a_verify_pass_that_would_be_skipped(tmp_path):
    path = trace(tmp_path, forward(31, 100, 1, **slots(31)))
    result = audited(path, pool_tokens="1000")
    assert ids(result) == {"need-verify"}
    row = result.capacities[0]
    assert (row.status, row.need) == ("OVER", 3100)
    assert row.remark == "need: 3,100 at step 0 (3.10 x pool slots), full group"
    assert ids(audited(path, pool_tokens="1034")) == set()
    exact = trace(tmp_path, forward(30, 100, 1, **slots(30)))
    assert ids(audited(exact, pool_tokens="1000")) == set()


def test_a_request_trace_goes_through_the_scheduler_model(tmp_path):
    path = tmp_path / "requests.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 3, "hash_ids": [0, 1]},
        {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [2, 3]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    workload = measured(str(path), context_length="4096")
    assert workload.format == "Mooncake request trace, served by the scheduler model"
    assert workload.tokens == Peak(1600, 0)
    assert workload.requests.need == 2
    chunked = measured(str(path), "--chunked-prefill-size", "512", context_length="4096")
    assert chunked.tokens.need == 512
