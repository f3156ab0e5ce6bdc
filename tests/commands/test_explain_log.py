"""`explain` of pasted text and of logs: text, JSON, standard input, errors, and what it loads."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kvcanary_cli.kernels import messages
from tests.cli import ROOT, call, imported_by, spawn
from tests.explain.server_lines import CASES, violation

HEAVY = {"numpy", "numba", "torch", "triton", "yaml", "msgspec", "rich"}
LOG = [
    "[2026-11-30 17:20:00 TP0] The server is fired up and ready to roll!",
    f"\x1b[31m[2026-11-30 17:20:01 TP0]\x1b[0m {violation(slot=4711)}",
    f"[2026-11-30 17:20:02 TP0] {violation(slot=4712)}",
    f"[2026-11-30 17:20:03 TP0] {violation('TAIL_V_SWA', 'real_kv_hash+position', slot=9)}",
    f"ValueError: {messages.write_entry(9000, 8192)}",
    f"RuntimeError: {messages.write_entry(20_000, 8192)}",
    f"RuntimeError: {messages.write_req(600, 512, flag=messages.WRITE_REQ_FLAG_OLD)}",
]


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_text("\n".join(LOG) + "\n", encoding="utf-8")
    return "server.log"


def test_a_pasted_message_says_what_happened_and_what_to_change(capsys):
    done = call(capsys, "explain", messages.plan_lanes(600, 512))
    lines = done.out.split("\n")
    assert (done.code, done.err) == (0, "")
    assert lines[:7] == [
        "explain   pasted text, 1 line",
        "          1 message of 1 kind",
        "",
        "plan-lanes: line 1",
        "  kv-canary: bs=600 exceeds write_req_capacity=512",
        "",
        "  A forward of 600 requests met a canary with room for 512: 88 too many. The",
    ]
    assert "    --cuda-graph-max-bs-decode 600       (smallest that works)" in lines
    assert lines[-5:] == [
        "next:   kvcanary explain C1",
        "        kvcanary check-capacities --args-file LAUNCH.sh",
        "",
        "kvcanary: PASS explain code=- pages=3 messages=1 violations=0 unknown=0 exit=0",
        "",
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_message_of_the_table(capsys, name):
    case = CASES[name]
    report = json.loads(call(capsys, "explain", f"RuntimeError: {case.text}", "--format", "json").out)
    (message,) = report["messages"]
    assert (message["family"], message["numbers"], message["words"]) == (
        case.family,
        case.numbers,
        case.words,
    )
    assert [change["change"] for change in message["changes"]] == case.changes
    assert [page["code"] for page in report["pages"]] == case.pages
    out = call(capsys, "explain", case.text).out
    assert all(change in out for change in case.changes)
    assert case.text in out


def test_a_message_without_quotes_around_it(capsys):
    words = messages.plan_lanes(600, 512).split()
    assert "--cuda-graph-max-bs-decode 600" in call(capsys, "explain", *words).out
    assert "--cuda-graph-max-bs-decode 600" in call(capsys, "explain", *words[1:]).out


def test_an_old_flag_leads_to_an_audit_of_its_release(capsys):
    done = call(capsys, "explain", CASES["write-requests of an old release"].text)
    assert "        kvcanary check-capacities --args-file LAUNCH.sh --sglang-version 0.5.18\n" in done.out


def test_a_violation_is_decoded(capsys):
    done = call(capsys, "explain", violation("TAIL_V_SWA", "verify_token+verify_position", expected_token=8))
    assert done.code == 0
    assert (
        "kv_canary violation: TAIL_V_SWA verify_token+position: line 1\n"
        "  TAIL_V_SWA    after the model ran, the V half, the group with a sliding window\n"
        "  verify_token  the slot holds another token than the request has at that position\n"
        "  position      the slot was stamped for another position than the table reaches it at\n"
        "  slots 4711; the first at position 17\n"
        "  token 5 is stored, the request has 8\n"
    ) in done.out
    assert "next:   kvcanary explain verify_token\n        kvcanary explain position\n" in done.out
    assert "        kvcanary replay TRACE --slot 4711 --history\n" in done.out


@pytest.mark.parametrize("reasons", ["verify_chain_hash+verify_position", "chain_hash+position"])
def test_both_spellings_say_the_same(capsys, reasons):
    usual = call(capsys, "explain", violation(reason="chain_hash+position")).out
    assert call(capsys, "explain", violation(reason=reasons)).out == usual


def test_a_log_is_grouped_and_counted(capsys, log):
    done = call(capsys, "explain", "--log", log)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        "explain   server.log, 7 lines\n          3 messages of 2 kinds, 3 violations of 2 kinds\n"
    )
    assert "\nwrite-entries: 2 times, lines 5 to 6\n" in done.out
    assert "token count=20000 exceeds" in done.out
    assert "token count=9000" not in done.out
    assert "\nwrite-requests: line 7\n" in done.out
    assert "\nkv_canary violation: HEAD_K_FULL chain_hash: 2 times, lines 2 to 3\n" in done.out
    assert "  slots 4711-4712; the first at position 17\n" in done.out
    assert done.out.endswith("messages=3 violations=3 unknown=0 exit=0\n")


def test_json_of_a_log(capsys, log):
    report = json.loads(call(capsys, "explain", "--log", log, "--format", "json").out)
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    assert report["inputs"] == {"code": None, "log": "server.log", "text": None}
    assert report["summary"] == {
        "pages": 11,
        "lines": 7,
        "messages": 3,
        "violations": 3,
        "unknown": 0,
        "kinds": 4,
        "left_out": 0,
    }
    first = report["violations"][0]
    assert (first["launch"], first["count"], first["slots"]) == ("HEAD_K_FULL", 2, [[4711, 4712]])
    assert first["decoded"]["half"] == "the K half"
    assert first["example"] == {
        "slot": 4711,
        "position": 17,
        "stored_token": 5,
        "expected_token": -1,
        "stored_chain_hash": "0x00000000000000ab",
        "expected_aux": "0xfedcba9876543210",
    }
    assert report["messages"][0]["template"].startswith("kv-canary: forward_batch token count=... exceeds")


@pytest.mark.parametrize("argv", [["-"], ["--log", "-"]])
def test_standard_input(argv):
    done = spawn("explain", *argv, stdin="\n".join(LOG))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("explain   <stdin>, 7 lines\n")
    assert done.out.endswith("messages=3 violations=3 unknown=0 exit=0\n")


def test_a_text_that_is_none_of_ours_names_the_nearest(capsys):
    done = call(capsys, "explain", "RuntimeError: a batch of 600 is more than write_req_capacity takes")
    assert (done.code, done.err) == (1, "")
    assert done.out == (
        "explain   pasted text, 1 line\n\n"
        "status: FAIL   none of ours: 1 line without a message of the canary\n"
        "why:    nearest known message: kv-canary: bs=... exceeds write_req_capacity=...\n"
        "next:   kvcanary explain\n\n"
        "kvcanary: FAIL explain code=- pages=0 messages=0 violations=0 unknown=0 exit=1\n"
    )


def test_a_text_that_is_like_nothing(capsys):
    done = call(capsys, "explain", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert done.code == 1
    assert "\nwhy:    no known message is like it\n" in done.out


def test_a_log_without_messages(capsys, tmp_path):
    path = tmp_path / "server.log"
    path.write_text("ready\nthe canary says that the tensor is not contiguous\n", encoding="utf-8")
    done = call(capsys, "explain", "--log", str(path))
    assert done.code == 1
    assert "status: FAIL   none of ours: 2 lines without a message of the canary\n" in done.out
    assert "why:    nearest known message: kv-canary: ... must be contiguous\n" in done.out


def test_a_text_with_the_prefix_that_nobody_knows(capsys):
    done = call(capsys, "explain", "kv-canary: step 5 found the tensor not contiguous")
    assert done.code == 1
    assert "not known: line 1\n  kv-canary: step 5 found the tensor not contiguous\n" in done.out
    assert "the text has the canary's prefix" in done.out
    assert done.out.endswith("unknown=1 exit=1\n")


def test_a_known_message_beside_an_unknown_one_is_a_pass(capsys):
    done = call(capsys, "explain", f"kv-canary: step 5 is odd\n{messages.plan_lanes(600, 512)}")
    assert done.code == 0
    assert "not known: line 1\n" in done.out
    assert done.out.endswith("messages=1 violations=0 unknown=1 exit=0\n")


def test_escape_codes_of_a_log_never_reach_the_terminal(capsys):
    done = call(capsys, "explain", "kv-canary: \x1b]0;title\x07 \x1b[31mred\x1b[0m \u202e text")
    assert done.out.isascii()
    assert "\x1b" not in done.out


def test_a_missing_file(capsys, tmp_path):
    done = call(capsys, "explain", "--log", str(tmp_path / "none.log"))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: {tmp_path / 'none.log'}: no such file\n"


def test_a_folder(capsys, tmp_path):
    done = call(capsys, "explain", "--log", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(": the file can't be read: Is a directory\n")


def test_a_log_and_a_code_do_not_go_together(capsys, log):
    done = call(capsys, "explain", "K07", "--log", log)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: `--log` explains a whole file, and `K07` stands beside it\n\nhint: `kvcanary explain --log FILE`\n"
    )


@pytest.mark.parametrize(
    "argv", [["explain", LOG[-1]], ["explain", "--log", "README.md"]], ids=["text", "log"]
)
def test_nothing_heavy_is_loaded(argv):
    assert imported_by(*argv) & HEAVY == set()
