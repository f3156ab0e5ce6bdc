"""`kvcanary audit`: verdicts, reports in every form, what is missing, and every refusal."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from kvcanary_cli.trace.safetensors import open_safetensors
from kvcanary_cli.trace.safetensors_writer import write_safetensors
from tests.audit.dumps import World
from tests.cli import ROOT, call, imported_by, spawn_without

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
)
ABSENT = {
    "tokens": {"expected_tokens": ..., "expected_lens": ...},
    "cache": {"cache": ...},
    "lens": {"seq_lens": ..., "expected_tokens": ..., "expected_lens": ...},
    "table": {"req_to_token": ...},
    "stamps": {"canary": {}},
    "bytes": {"sources": []},
}


@pytest.fixture
def world():
    return World()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.safetensors"


def audit(capsys, *argv: str):
    return call(capsys, "audit", *argv, "--device", "cpu")


def report_of(capsys, code: int, *argv: str) -> dict:
    done = audit(capsys, *argv, "--format", "json")
    assert (done.code, done.err) == (code, "")
    report = json.loads(done.out)
    VALIDATOR.validate(report)
    return report


def changed(path: str, tensors: dict | None = None, metadata: dict | None = None) -> str:
    """The file again, with tensors and metadata replaced; None takes one away."""
    file = open_safetensors(path)
    arrays = {name: np.array(file.array_of(name)) for name in file.tensors} | (tensors or {})
    texts = file.metadata | (metadata or {})
    write_safetensors(
        path,
        {name: array for name, array in arrays.items() if array is not None},
        {key: text for key, text in texts.items() if text is not None},
    )
    return path


def test_a_clean_dump(capsys, world, path):
    done = audit(capsys, world.write(path))
    assert (done.code, done.err) == (0, "")
    assert "status: PASS   clean: everything in the dump was checked, nothing failed\n" in done.out
    assert done.out.endswith("kvcanary: PASS audit incidents=0 slots=0 rows=3 checked=144 exit=0\n")


def test_a_damaged_dump_as_the_guide_shows_it(capsys, world, path):
    world.table[2, 6] = 15
    done = audit(capsys, world.write(path))
    guide = (ROOT / "docs" / "audit-a-dump.md").read_text(encoding="utf-8")
    shown = guide.partition("## An example")[2].split("```\n")[1]
    assert shown in done.out
    assert done.code == 1
    assert f"next:   kvcanary audit {path} -v\n" in done.out
    assert done.out.endswith("kvcanary: FAIL audit incidents=1 slots=1 rows=3 checked=144 exit=1\n")
    assert max(len(line) for line in done.out.splitlines() if str(path) not in line) <= 80


def test_a_report_as_json(capsys, world, path):
    world.table[2, 6] = 15
    report = report_of(capsys, 1, world.write(path))
    (incident,) = report["incidents"]
    assert incident["held_by"] == [{"row": 2, "rid": "req-2", "cache": False}]
    assert incident["stamp"]["chain_of"] == [{"row": 5, "rid": "req-5", "cache": False}]
    assert incident["stamped_positions"] == [[11, 11]]
    assert (incident["slots"], incident["pages"], incident["shadows"]) == ([[15, 15]], [[3, 3]], [[35, 35]])
    assert report["summary"]["violations"] == len(report["violations"]) == 8
    row = next(r for r in report["violations"] if (r["launch"], r["slot"]) == ("TAIL_K_FULL", 15))
    assert (row["page"], row["row"], row["rid"], row["position"]) == (3, 2, "req-2", 6)
    assert row["bits"] == ["chain_hash", "position", "verify_token"]
    assert row["stored"]["position"] == 11
    assert row["stored"]["token"] == world.tokens[5, 11]
    assert row["expected"]["token"] == world.tokens[2, 6]
    assert row["stored"]["kv_hash"] == row["expected"]["kv_hash"]


def test_stored_and_expected_byte_hash(capsys, world, path):
    world.kv["v"][33, 5] ^= 1
    (row,) = report_of(capsys, 1, world.write(path))["violations"]
    assert (row["launch"], row["slot"], row["bits"]) == ("TAIL_V_FULL", 33, ["real_kv_hash"])
    assert row["expected"]["kv_hash"] == f"0x{world.slot_hash('v', 33):016x}" != row["stored"]["kv_hash"]


def test_the_same_dump_gives_the_same_report(capsys, world, path):
    world.table[5, [9, 14]] = world.table[5, [14, 9]]
    dumped = world.write(path)
    one, again = (report_of(capsys, 1, dumped) for _ in range(2))
    assert {**one, "timing": 0} == {**again, "timing": 0}


def test_other_forms(capsys, world, path, tmp_path):
    world.table[2, 6] = 15
    dumped = world.write(path)
    github = audit(capsys, dumped, "--format", "github", "--quiet")
    assert github.out.startswith(
        "::error title=kvcanary audit%3A shared-slot::slots 15 of row 2 (req-2), position 6: "
    )
    lines = [json.loads(line) for line in audit(capsys, dumped, "--format", "jsonl").out.splitlines()]
    assert [line["type"] for line in lines] == ["start", "incident", "summary"]
    out = tmp_path / "r.json"
    assert audit(capsys, dumped, "--output", str(out), "--exit-zero").code == 0
    assert json.loads(out.read_text())["exit_code"] == 1
    verbose = audit(capsys, dumped, "-v").out
    assert " TAIL_K_FULL    15     3    2    6  tpc   prev_hash  0x" in verbose


def test_no_tokens(capsys, world, path):
    world.table[2, 6] = 15
    report = report_of(capsys, 1, world.write(path), "--no-tokens")
    assert {r["stored"]["token"] for r in report["violations"]} == {None}
    assert {r["expected"]["token"] for r in report["violations"]} == {None}
    assert report["incidents"][0]["stamp"]["token"] is None


@pytest.mark.parametrize(
    ("absent", "code", "missing", "unchecked"),
    [
        ("tokens", 0, [], ["verify_token"]),
        ("cache", 0, [], ["cache"]),
        ("lens", 4, ["rows"], ["verify_token"]),
        ("table", 4, ["rows"], []),
        ("stamps", 4, ["stamps"], []),
        ("bytes", 4, ["real_kv_hash"], []),
    ],
)
def test_what_could_not_be_checked(capsys, world, path, absent, code, missing, unchecked):
    dumped = world.write(path, **ABSENT[absent])
    report = report_of(capsys, code, dumped)
    assert [gap["check"] for gap in report["coverage"]["missing"]] == missing
    assert [gap["check"] for gap in report["coverage"]["not_checked"]] == unchecked
    text = audit(capsys, dumped).out
    assert "clean" not in text
    word = "missing" if missing else "not checked"
    assert f"\n  {word}" in text
    assert f"status: {'INCOMPLETE' if code else 'PASS'}   no fault found in what was checked" in text


def test_a_finding_outweighs_what_is_missing(capsys, world, path):
    everything = world.write(path, sources=[])
    assert report_of(capsys, 4, everything)["status"] == "incomplete"
    world.table[2, 6] = 15
    assert report_of(capsys, 1, world.write(path, sources=[]))["status"] == "fail"


def test_bytes_that_are_not_there_are_no_violation(capsys, world, path):
    report = report_of(capsys, 4, changed(world.write(path), {"kv.v": None}))
    assert report["violations"] == []
    assert report["coverage"]["missing"][0]["why"].startswith("the dump has no kv.v: ")
    assert report["notes"] == ["source v has no tensor kv.v"]


def test_stamps_without_byte_hashes_need_no_bytes(capsys, world, path):
    for buffer in world.canary.values():
        buffer[:, 3] = 0
    assert report_of(capsys, 0, world.write(path, sources=[], hash_mode=None))["coverage"]["missing"] == []


def test_one_phase_alone(capsys, world, path):
    canary = {name: buffer for name, buffer in world.canary.items() if name.startswith("tail")}
    report = report_of(capsys, 0, world.write(path, canary=canary))
    assert [gap["check"] for gap in report["coverage"]["not_checked"]] == ["head_k_full", "head_v_full"]


@pytest.mark.parametrize("check", ["verify_token", "cache"])
def test_required_checks(capsys, world, path, check):
    dumped = world.write(path, **ABSENT["tokens" if check == "verify_token" else "cache"])
    done = audit(capsys, dumped, "--require", check)
    assert (done.code, f"missing={check} exit=4" in done.out) == (4, True)
    assert audit(capsys, dumped, "--require", "position,stamps").code == 0


def test_a_table_alone_tells_who_holds_what(capsys, world, path):
    world.table[5, 10] = 0
    report = report_of(capsys, 1, world.write(path, canary={}, sources=[]))
    assert [incident["kind"] for incident in report["incidents"]] == ["padding-slot"]


def test_the_log_of_the_server(capsys, world, path):
    world.table[2, 6] = 15
    log = np.zeros((4, 8), np.int64)
    log[0, [1, 7]] = 15, 2
    log[1, [1, 7]] = 24, 1
    counted = np.array([2], np.int32)
    report = report_of(capsys, 1, world.write(path, violations=log, violation_count=counted))
    assert report["server_log"] == {"violations": 2, "kept": 2, "confirmed": 1}
    text = audit(capsys, str(path)).out
    assert "  server                 2 violations in the server's log, 1 of 2 kept rows fail" in text


def test_stamps_as_bytes_and_wider_rows(capsys, world, path):
    wide = {
        name: np.pad(buffer, ((0, 0), (0, 2)), constant_values=9) for name, buffer in world.canary.items()
    }
    assert report_of(capsys, 0, world.write(path, canary=wide))["summary"]["incidents"] == 0
    as_bytes = {name: buffer.view(np.uint8) for name, buffer in wide.items()}
    assert as_bytes["tail_k_full"].shape == (64, 48)
    assert report_of(capsys, 0, world.write(path, canary=as_bytes))["summary"]["incidents"] == 0


@pytest.mark.parametrize(
    ("metadata", "where", "words"),
    [
        ({"format": None}, "", "says no `format`, 'kvcanary-dump/1' is expected"),
        ({"format": "2"}, "", "says `format` '2'"),
        ({"page_size": "0"}, "page_size", "is '0', a whole number from 1 to 2,147,483,647 is"),
        ({"page_size": "4.5"}, "page_size", "is '4.5'"),
        ({"page_size": "2147483648"}, "page_size", "a whole number from 1 to 2,147,483,647 is expected"),
        ({"token_offset": "9" * 5000}, "token_offset", "'... of 5,000 characters, a whole number from 0 to"),
        ({"hash_mode": "partal"}, "hash_mode", "known are none, partial, all\n\nhint: did you mean partial?"),
        ({"sources": "{"}, "sources", "is not JSON"),
        ({"sources": '[{"name": "k"}]'}, "sources", "missing required field `num_bytes_per_token`"),
        ({"rids": "[]"}, "rids", "is not a JSON object"),
        ({"rids": '{"x": "r"}'}, "rids", "the number of a row and a text are expected"),
        ({"rids": f'{{"{"9" * 5000}": "r"}}'}, "rids", "the number of a row and a text are expected"),
    ],
)
def test_bad_metadata(capsys, world, path, metadata, where, words):
    done = audit(capsys, changed(world.write(path), metadata=metadata))
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert str(path) in done.err
    assert not where or f"$.__metadata__.{where}" in done.err


def test_numbers_that_json_has_no_form_for_are_shown_as_texts(capsys, world, path):
    report = report_of(capsys, 0, world.write(path, about={"a": float("nan"), "b": [float("-inf"), 2.5]}))
    assert report["about"] == {"a": "NaN", "b": ["-Infinity", 2.5]}
    changed(str(path), metadata={"about": '{"a": 1e999}'})
    assert report_of(capsys, 0, str(path))["about"] == {"a": "1e999"}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"seq_lens": np.zeros(7)}, "tensor 'seq_lens' is F64 [7], I64 or I32 [rows] is expected"),
        ({"seq_lens": np.zeros(6, np.int64)}, "number of rows: req_to_token 7, seq_lens 6"),
        ({"req_to_token": np.zeros(7, np.int32)}, "is I32 [7], I32 or I64 [rows, width] is expected"),
        ({"canary.tail_k_full": np.zeros((64, 3), np.int64)}, "is I64 [64, 3], I64 [slots, 4 or more] or U8"),
        ({"canary.tail_k_full": np.zeros((64, 36), np.uint8)}, "a multiple of 8]"),
        ({"canary.tail_k_full": np.zeros((60, 4), np.int64)}, "number of slots: canary.head_k_full 64"),
        ({"cache.slots": np.zeros(3, np.int64)}, "number of entries: cache.slots 3, cache.positions 4"),
        (
            {"kv.k": np.zeros((15, 128), np.uint8)},
            "has bytes for 60 slots, the stamps of the full group are of 64",
        ),
        ({"kv.k": np.zeros((16, 64), np.uint8)}, "page_size * num_bytes_per_token = 128 are expected"),
        ({"violations": np.zeros((4, 7), np.int64)}, "I64 [rows of the log, 8] is expected"),
    ],
)
def test_bad_tensors(capsys, world, path, tensors, words):
    done = audit(capsys, changed(world.write(path), tensors))
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_what_is_not_known_is_named(capsys, world, path):
    dumped = changed(
        world.write(path),
        {"seq_len": np.zeros(1), "kv.x": np.zeros(1), "seq_lens": None, "expected_lens": None},
        {"pagesize": "4", "x-mine": "1"},
    )
    report = report_of(capsys, 4, dumped)
    assert sorted(report["notes"]) == [
        "metadata pagesize is not known and not used, was page_size meant?",
        "tensor kv.x is not used: `sources` of the metadata does not describe it",
        "tensor seq_len is not known and not used, was seq_lens meant?",
    ]


def test_nothing_to_audit(capsys, path):
    write_safetensors(path, {"x": np.zeros(1)}, {"format": "kvcanary-dump/1"})
    done = audit(capsys, str(path))
    assert (done.code, "holds neither stamps nor a page table" in done.err) == (2, True)


def test_refused_words(capsys, world, path):
    dumped = world.write(path)
    assert "did you mean position?" in audit(capsys, dumped, "--require", "positon").err
    assert "names nothing" in audit(capsys, dumped, "--require", ",").err
    assert "would write over" in audit(capsys, dumped, "--output", dumped).err
    assert "no such file" in audit(capsys, str(path) + "x").err
    assert audit(capsys, dumped, "--threads", "4096").code == 3


def test_page_size_of_the_command_line(capsys, world, path):
    world.table[2, 6] = 15
    report = report_of(capsys, 1, world.write(path), "--page-size", "16")
    assert (report["pool"]["page_size"], report["incidents"][0]["pages"]) == (16, [[0, 0]])


def test_it_runs_without_torch(world, path):
    dumped = world.write(path)
    assert spawn_without({"torch", "triton"}, "audit", dumped).code == 0
    assert imported_by("audit", "--help") & {"torch", "triton", "numba", "numpy", "rich"} == set()


def test_a_machine_without_numba(world, path):
    done = spawn_without({"numba"}, "audit", world.write(path), "--device", "cpu")
    assert (done.code, done.out) == (3, "")
    assert done.err == "error: audit needs numba, which is not installed\n\nhint: `pip install numba`\n"


def test_warnings_are_findings_with_strict(capsys, world, path):
    world.stamp([1, 2, 3, 4], world.tokens[2, :4].tolist())
    world.table[2, :4] = [1, 2, 3, 4]
    world.table[1, :3] = [1, 2, 3]
    dumped = world.write(path)
    done = audit(capsys, dumped)
    assert (done.code, "WARN 1 slot held behind several slots" in done.out) == (0, True)
    assert audit(capsys, dumped, "--strict").code == 1


def test_a_length_beyond_the_table(capsys, world, path):
    world.lens[3] = 500
    done = audit(capsys, world.write(path, expected_lens=np.minimum(world.lens, 24)))
    assert done.code == 1
    assert "1 row with a length that can't be" in done.out


def test_where_everything_fails_a_part_is_looked_at_one_by_one(capsys, world, path, monkeypatch):
    monkeypatch.setattr("kvcanary_cli.audit.blame.MAX_JUDGED", 10)
    for buffer in world.canary.values():
        buffer[:, 1] ^= 64
    done = audit(capsys, world.write(path, rids={}))
    assert (done.code, " slots damaged at least" in done.out) == (1, True)
    assert "  not judged               26 failed entries not looked at one by one" in done.out
    assert "suspect: rows 1-2, 5" in " ".join(done.out.split())


def test_buffers_that_the_server_does_not_use(capsys, world, path):
    for half in ("v", "k"):
        for phase in ("head", "tail"):
            world.canary[f"{phase}_{half}_full"][:] = 0
        dumped = world.write(path)
        report = report_of(capsys, 0 if half == "v" else 4, dumped)
        assert report["incidents"] == []
        assert {gap["check"] for gap in report["coverage"]["not_checked"]} >= {"head_v_full", "tail_v_full"}
    assert [gap["check"] for gap in report["coverage"]["missing"]] == ["stamps"]
