"""`replay` and `inspect` of KV event streams: reports, exit codes, and what they load."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.cli import ROOT, call, imported_by, spawn, spawn_without
from tests.kvevents.streams import CLEARED, batches, removed, stored, write

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
HEAVY = {"torch", "triton", "numba", "numpy", "zmq", "rich"}
CLEAN = batches(stored([1, 2]), removed([2]), CLEARED, stored([3], group_idx=None))
FAULTY = batches(stored([1, 2]), removed([1]), removed([9]))
LLM_D = ROOT / "tests" / "traces" / "llm-d" / "kv_event_base.noprompt.json"


@pytest.fixture
def clean(tmp_path):
    return str(write(tmp_path / "clean.jsonl", CLEAN))


@pytest.fixture
def faulty(tmp_path):
    return str(write(tmp_path / "faulty.jsonl", FAULTY))


def report_of(capsys, *words):
    done = call(capsys, *words, "--format", "json")
    report = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert (done.code, done.err) == (report["exit_code"], "")
    return report


def test_a_clean_stream_passes(capsys, clean):
    done = call(capsys, "replay", clean, "--pool-tokens", "100")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"replay   {clean}, KV event stream: 4 batches, 4 events",
        "pool     100 tokens",
        "",
        "  form         batch object 4",
        "  events       AllBlocksCleared 1, BlockRemoved 1, BlockStored 2",
        "  blocks       3 stored, 1 removed",
        "  checked      sequence 4, residency 4, tokens 3, block_size 2, content 3,",
        "               capacity 2",
        "  not checked  page_hash: no hash is SGLang's plain page hash",
        "",
        "  RANK  GROUP  MEDIUM  BLOCK  PEAK BLOCKS  PEAK TOKENS  LINE  AT THE END",
        "     0      -  GPU         2            2            4     1           1",
        "",
        "status: PASS   no fault found in what was checked; see `not checked`",
        "",
        "kvcanary: PASS replay incidents=0 slots=- checked=4 skipped=0 unchecked=page_hash format=kv-events blocks=0 "
        "ranks=1 exit=0",
    ]


def test_findings_are_incidents_with_place_and_hash(capsys, faulty):
    report = report_of(capsys, "replay", faulty)
    assert (report["status"], report["summary"]["by_code"]) == ("fail", {"S01": 1, "S02": 1})
    first = report["incidents"][0]
    assert first == {
        "id": 1,
        "kind": "S02",
        "name": "removed-parent",
        "severity": "error",
        "rank": 0,
        "worker": None,
        "group": None,
        "medium": "GPU",
        "hash": "0x0000000000000001",
        "blocks": 1,
        "file": faulty,
        "line": 2,
        "seq": 1,
        "text": "removed while its child 0x0000000000000002 stays resident",
        "strength": "certain",
    }
    assert report["hints"] == ["kvcanary explain S02", "kvcanary explain S01"]
    text = call(capsys, "replay", faulty).out
    assert (
        " 1  S02 removed-parent      0      -  GPU     0x0000000000000001       1     2" in text.splitlines()
    )
    assert "2 incidents, 2 blocks" in text.splitlines()


def test_every_number_of_the_text_is_in_the_json(capsys, faulty):
    report = report_of(capsys, "replay", faulty)
    assert report["coverage"]["events"] == 3
    assert report["ranks"][0]["places"][0]["peak_tokens"] == 4


def test_other_forms_of_the_report(capsys, faulty):
    done = call(capsys, "replay", faulty, "--format", "github")
    assert done.out.splitlines()[0] == (
        f"::error title=S02 removed-parent::{faulty}:2: rank 0: 0x0000000000000001 removed while its child "
        "0x0000000000000002 stays resident"
    )
    lines = [
        json.loads(line) for line in call(capsys, "replay", faulty, "--format", "jsonl").out.splitlines()
    ]
    assert [line["type"] for line in lines] == [
        "start",
        "progress",
        "progress",
        "incident",
        "incident",
        "summary",
    ]
    assert lines[1]["finding"]["kind"] == "S02"
    quiet = call(capsys, "replay", faulty, "--quiet")
    assert len(quiet.out.splitlines()) == 1
    assert call(capsys, "replay", faulty, "--exit-zero", "--quiet").code == 0


def test_long_tables_are_cut_and_all_is_shown_with_all(capsys, tmp_path):
    path = str(write(tmp_path / "a.jsonl", batches(*[removed([each]) for each in range(80)])))
    assert "... 30 more incidents (--all, or --format json)" in call(capsys, "replay", path).out
    assert "more incidents" not in call(capsys, "replay", path, "--all").out


def test_gaps_make_it_incomplete(capsys, tmp_path):
    lines = [*batches(stored([1])), *batches(removed([5]), first=3), *batches(removed([1]), first=9)]
    path = str(write(tmp_path / "a.jsonl", lines))
    report = report_of(capsys, "replay", path)
    assert (report["exit_code"], report["coverage"]["lost_batches"], report["coverage"]["unproven"]) == (
        4,
        7,
        {"S01": 1},
    )
    text = call(capsys, "replay", path).out
    assert "  missing      7 batches in 2 gaps (S09): 1-2, 4-8" in text.splitlines()
    assert text.splitlines()[-1].endswith("gaps=2 format=kv-events blocks=0 ranks=1 lost_batches=7 exit=4")


def test_bad_lines(capsys, tmp_path):
    path = str(write(tmp_path / "a.jsonl", [CLEAN[0], {"events": 5}, CLEAN[1]]))
    done = call(capsys, "replay", path)
    assert done.code == 2
    assert done.err.startswith(f"error: {path}:2: $.events: the events of a batch are an array")
    report = report_of(capsys, "replay", path, "--skip-bad-lines")
    assert (report["exit_code"], report["coverage"]["bad_line_numbers"]) == (4, [{"file": path, "line": 2}])
    assert "missing      1 line skipped: 2" in call(capsys, "replay", path, "--skip-bad-lines").out


def test_a_file_that_ends_inside_a_line(capsys, clean):
    path = Path(clean)
    path.write_bytes(path.read_bytes()[:-5])
    report = report_of(capsys, "replay", clean)
    assert (report["exit_code"], report["coverage"]["truncated"]) == (4, {"file": clean, "line": 4})
    assert report_of(capsys, "inspect", clean)["exit_code"] == 4


def test_required_checks(capsys, clean):
    assert report_of(capsys, "replay", clean, "--require", "sequence,residency")["exit_code"] == 0
    report = report_of(capsys, "replay", clean, "--require", "page_hash, capacity")
    assert (report["exit_code"], report["coverage"]["required_missing"]) == (4, ["page_hash", "capacity"])
    done = call(capsys, "replay", clean, "--require", "page-hash")
    assert (done.code, "did you mean page_hash?" in done.err) == (2, True)


def test_the_pool_of_a_config(capsys, tmp_path, clean):
    config = tmp_path / "c.yaml"
    config.write_text(
        "pool: {tokens: 3, page_size: 1, context_length: 64}\n"
        "capacities: {write_req: 8, write_entry: 8, verify: 9}\n"
    )
    report = report_of(capsys, "replay", clean, "--capacities", str(config))
    assert (report["pool"], report["summary"]["by_code"]) == ({"tokens": 3}, {"S11": 1})


def test_a_capture_of_one_event_passes(capsys):
    report = report_of(capsys, "replay", str(LLM_D), "--pool-tokens", "400")
    assert (report["exit_code"], report["coverage"]["stored_blocks"]) == (0, 25)
    assert report_of(capsys, "replay", str(LLM_D), "--pool-tokens", "399")["exit_code"] == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--incident", "1"],
        ["--slots"],
        ["--slot", "3", "--history"],
        ["--heatmap"],
        ["--save-trace", "x"],
        ["--limit-steps", "1"],
        ["--stop-on-violation"],
        ["--chain", "affine"],
        ["--ring", "8"],
        ["--sweep-interval", "8"],
        ["--block-size", "16"],
        ["--scheduler", "vllm"],
    ],
)
def test_flags_of_traces_are_refused(capsys, clean, flags):
    done = call(capsys, "replay", clean, *flags)
    assert done.code == 2
    assert "is for traces, a KV event stream has no slots and no forwards" in done.err


def test_events_and_traces_are_not_mixed(capsys, tmp_path, clean):
    mooncake = str(ROOT / "docs" / "examples" / "mooncake-conversation.jsonl")
    done = call(capsys, "replay", clean, mooncake)
    assert (done.code, "is no KV event stream, and the other files are" in done.err) == (2, True)
    done = call(capsys, "replay", mooncake, "--pool-tokens", "100")
    assert (done.code, "`--pool-tokens` is for a KV event stream" in done.err) == (2, True)
    for command in (["simulate", clean], ["inspect", clean, "--block-size", "16"]):
        assert call(capsys, *command).code == 2


def test_a_pipe_needs_the_name_of_the_format(faulty):
    text = Path(faulty).read_text(encoding="ascii")
    done = spawn("replay", "-", "--input-format", "kv-events", "--quiet", stdin=text)
    assert done.out.startswith("kvcanary: FAIL replay incidents=2 ")
    assert done.code == 1


def test_an_inspection_tells_what_is_there(capsys, tmp_path):
    lines = [*batches(stored([1, 2])), *batches(removed([2]), first=3)]
    path = str(write(tmp_path / "a.jsonl", lines))
    done = call(capsys, "inspect", path)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"inspect   {path}",
        "format    KV event stream",
        "",
        "  form     batch object 2",
        "  batches  2 over 3.000 s",
        "  events   2: BlockRemoved 1, BlockStored 1",
        "  blocks   2 stored, 1 removed",
        "  ranks    0",
        "  gaps     1 gap, 2 batches lost",
        "",
        "  RANK  GROUP  MEDIUM  BLOCK  PEAK BLOCKS  PEAK TOKENS  LINE  AT THE END",
        "     0      -  GPU         2            2            4     1           1",
        "",
        "status: PASS   every line can be used; a replay says whether the events fit",
        "               together",
        f"next:   kvcanary replay {path}",
        "",
        "kvcanary: PASS inspect format=kv-events batches=2 events=2 ranks=1 lost_batches=2 bad_lines=0 exit=0",
    ]
    report = report_of(capsys, "inspect", path)
    assert (report["events"]["batches"], report["coverage"]["lost_batches"]) == (2, 2)


@pytest.mark.parametrize("command", ["replay", "inspect"])
def test_nothing_heavy_is_loaded(clean, command):
    loaded = imported_by(command, clean)
    assert "msgspec" in loaded
    assert loaded & HEAVY == set()
    assert spawn_without(HEAVY, command, clean, "--quiet").code == 0
