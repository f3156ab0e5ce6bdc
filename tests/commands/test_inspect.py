"""`kvcanary inspect`: the facts, what is assumed, what can't be used, and what to run next."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import threading
from pathlib import Path

import jsonschema
import pytest

from tests.cli import ROOT, call, spawn

CSV = ROOT / "tests" / "trace" / "csv_samples"
MOONCAKE = ROOT / "docs" / "examples" / "mooncake-conversation.jsonl"
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def row(time: int, length: int, output: int = 1, ids: list[int] | None = None, **more: object) -> str:
    keys = {"timestamp": time, "input_length": length, "output_length": output}
    return json.dumps(keys | ({} if ids is None else {"hash_ids": ids}) | more)


def write(folder: Path, *lines: str, name: str = "t.jsonl") -> str:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def report(capsys, path: str | Path, *flags: str, code: int = 0) -> dict:
    done = call(capsys, "inspect", str(path), "--format", "json", *flags)
    assert (done.code, done.err) == (code, "")
    found = json.loads(done.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    done = spawn("synth", "--steps", "30", "--seed", "3", "--output", str(path))
    assert done.code == 0
    return path


TEXT = """\
inspect   {path}
format    Mooncake request trace

  requests     4, over 1.500 s
  prompt       65 tokens, 8 to 24 a request, 16.2 on average
  output       15 tokens, 1 to 9 a request, 3.8 on average
  longest      26 tokens, prompt and output of req-4:
               no pool below 25 tokens can serve it
  arrivals     at most 3 within one second, from 0.000 s on
               at most 2 at the same time, 0.500 s
  outstanding  at least 34 tokens, which arrive together at 0.500 s
               at most 80 tokens, if none ended before the last arrived
  blocks       9 ids of 8 tokens in 4 prompts
               5 different; 1 names a partial block, not reused
  reuse        49.2% of prompt tokens (32), if a cache never evicts:
               3 prompts begin with whole blocks of an earlier one

  ROWS  FIRST LINE  QUIRK
     1           -  has "note", which is not used

what will be assumed
  block size  8                                    --block-size
  times       milliseconds                         Mooncake request trace
  order       as in the file, times never go back  the rows

status: PASS   every row can be used, 1 quirk
next:   kvcanary replay {path} --block-size 8
        kvcanary simulate {path} --block-size 8

kvcanary: PASS inspect format=mooncake requests=4 prompt_tokens=65 output_tokens=15 longest=26 \
quirks=1 bad_lines=0 exit=0
"""


def test_text_of_a_request_trace(capsys, tmp_path):
    path = write(
        tmp_path,
        row(0, 16, 4, [1, 2]),
        row(500, 24, 1, [1, 2, 3]),
        row(500, 8, 1, [1], note="x"),
        row(1500, 17, 9, [1, 5, 6]),
    )
    # reused: two blocks of 8 tokens by the second prompt, one each by the third and the fourth
    done = call(capsys, "inspect", path, "--block-size", "8")
    assert (done.code, done.err, done.out) == (0, "", TEXT.format(path=path))


def test_nothing_is_said_of_requests_that_are_not_there(capsys, tmp_path):
    path = write(tmp_path, row(0, 16, 4, [1]))
    done = call(capsys, "inspect", path, "--block-size", "4", "--skip-bad-lines")
    assert done.code == 4
    assert "\n  requests  0\n\n  skipped 1 line: 1\n\nstatus: INCOMPLETE" in done.out


def test_the_smallest_pool_is_what_the_model_needs(capsys, tmp_path):
    path = write(tmp_path, row(0, 16, 4, [1]))
    assert "no pool below 19 tokens can serve it" in call(capsys, "inspect", path).out
    for scheduler in ("sglang", "vllm"):
        words = ["simulate", path, "--page-size", "1", "--scheduler", scheduler, "--pool-tokens"]
        assert [call(capsys, *words, tokens).code for tokens in ("18", "19")] == [2, 0]


def test_every_line_of_the_body_fits(capsys):
    done = call(capsys, "inspect", str(MOONCAKE))
    body = done.out.partition("status:")[0].splitlines()
    assert [line for line in body if len(line) > 80] == []


def test_the_body_of_a_trace_with_turns_fits(capsys):
    path = str(ROOT / "tests" / "traces" / "dynamo" / "mooncake-delta.jsonl")
    out = call(capsys, "inspect", path, "--input-format", "mooncake-delta").out
    assert "  waiting      1 request waits for an earlier one to end:\n" in out
    assert "               1 prompt begins with whole blocks of an earlier one\n" in out
    body = out.partition("QUIRK")[0].splitlines()[2:]
    assert [line for line in body if len(line) > 80] == []


def test_hints_for_a_file_that_looks_like_an_option(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, row(0, 16, 4, [1]))
    Path("t.jsonl").rename("-t.jsonl")
    hints = report(capsys, "./-t.jsonl")["hints"]
    assert len(hints) == 3
    assert json.loads(call(capsys, "inspect", "--format", "json", "--", "-t.jsonl").out)["hints"] == hints


@pytest.mark.parametrize(
    ("name", "format", "requests", "hints"),
    [
        ("azure-2023", "azure", 11, 3),
        ("burstgpt-3", "burstgpt", 4, 3),
        ("vidur", "vidur", 11, 3),
        ("vidur-lengths", "vidur-lengths", 5, 0),
        ("splitwise-sim", "splitwise-sim", 3, 3),
    ],
)
def test_csv(capsys, name, format, requests, hints):
    found = report(capsys, CSV / f"{name}.csv")
    assert found["format"]["name"] == format
    assert (found["requests"]["requests"], len(found["hints"])) == (requests, hints)
    assert found["requests"]["prefixes"] is None
    forced = report(capsys, CSV / f"{name}.csv", "--input-format", format)
    assert forced["format"]["from"] == "--input-format"
    assert forced["requests"] == found["requests"]


def test_a_length_table_can_be_inspected_and_not_replayed(capsys):
    path = str(CSV / "vidur-lengths.csv")
    found = report(capsys, path)["requests"]
    assert (found["lacks"], found["span_seconds"], found["outstanding_tokens"]) == (
        ["arrival times"],
        None,
        None,
    )
    assert "without arrival times it can't be served" in call(capsys, "inspect", path).out
    done = call(capsys, "replay", path)
    assert done.code == 2
    assert "the file has no arrival times, so it can't be scheduled" in done.err


def test_two_formats_of_one_workload_agree(capsys):
    azure, vidur = (report(capsys, CSV / f"{name}.csv")["requests"] for name in ("azure-2023", "vidur"))
    assert azure == vidur


def test_hints_can_be_pasted(capsys, tmp_path):
    path = tmp_path / "my rows.csv"
    path.write_bytes((CSV / "vidur.csv").read_bytes())
    hints = report(capsys, path, "--limit-requests", "3")["hints"]
    assert [hint.split()[1] for hint in hints] == ["replay", "simulate", "check-capacities"]
    for hint in hints:
        words = shlex.split(hint)
        assert words[0] == "kvcanary"
        done = call(capsys, *words[1:])
        assert (done.code, done.err) == (0, ""), hint


def test_prefix_sharing_counts_whole_blocks_from_the_start_only(capsys, tmp_path):
    ids = [[1, 2, 3], [1, 9, 3], [7, 2, 3], [1, 2, 3]]
    path = write(tmp_path, *(row(at, 3 * 4, 1, one) for at, one in enumerate(ids)))
    prefixes = report(capsys, path, "--block-size", "4")["requests"]["prefixes"]
    # 1 of the second, none of the third although 2 and 3 are known, 3 of the fourth
    assert (prefixes["reused_blocks"], prefixes["reusing"], prefixes["distinct"]) == (4, 2, 5)
    assert (prefixes["reused_tokens"], prefixes["prompt_tokens"]) == (16, 48)


def test_a_partial_block_is_not_reused(capsys, tmp_path):
    path = write(tmp_path, *(row(at, 6, 1, [1, 2]) for at in range(3)))
    prefixes = report(capsys, path, "--block-size", "4")["requests"]["prefixes"]
    assert (prefixes["reused_blocks"], prefixes["partial"], prefixes["reused_share"]) == (2, 3, 0.444444)


def test_rows_out_of_order_and_content_ids_are_quirks(capsys, tmp_path):
    path = write(tmp_path, row(5, 8, 1, [1, 2]), row(3, 8, 1, [2, 1]), row(9, 4, 1, [3]))
    found = report(capsys, path, "--block-size", "4")
    assert [(quirk["count"], quirk["text"]) for quirk in found["quirks"]] == [
        (1, "has an earlier time than the row before"),
        (2, "block id stands at two places, so ids name content, not prefixes"),
    ]
    assert "sorted by time, stably" in [one["value"] for one in found["assumed"]]
    assert call(capsys, "inspect", path, "--block-size", "4", "--strict").code == 1


def test_bad_lines(capsys, tmp_path):
    path = write(tmp_path, row(0, 8), "{", row(1, 0), row(2, 8))
    done = call(capsys, "inspect", path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {path}:2: ")
    found = report(capsys, path, "--skip-bad-lines", code=4)
    assert (found["status"], found["requests"]["requests"]) == ("incomplete", 2)
    assert found["coverage"]["bad_line_numbers"] == [2, 3]
    text = call(capsys, "inspect", path, "--skip-bad-lines").out
    assert "  skipped 2 lines: 2, 3\n" in text
    assert "2 lines could not be used and are in no number above" in text


def test_limit(capsys):
    found = report(capsys, MOONCAKE, "--limit-requests", "7")
    assert (found["requests"]["requests"], found["coverage"]["limited"]) == (7, {"requests": 7})
    out = call(capsys, "inspect", str(MOONCAKE), "--limit-requests", "7").out
    assert "every row up to the limit can be used" in out
    assert out.endswith(" limited=requests:7 exit=0\n")


def test_trace(capsys, trace):
    found = report(capsys, trace)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    facts = found["trace"]
    kinds = {kind: sum(line["ev"] == kind for line in lines) for kind in {line["ev"] for line in lines[1:]}}
    forwards = [line for line in lines if line["ev"] == "forward"]
    assert (facts["events"], facts["events_by_kind"]) == (len(lines) - 1, kinds)
    assert facts["forwards"] == sum(facts["forwards_by_mode"].values()) == 30
    assert facts["requests"] == len({line["rid"] for line in lines if line["ev"] == "bind"})
    assert facts["most_lanes"]["value"] == max(max(len(f["rows"]), f.get("width", 0)) for f in forwards)
    assert facts["most_prefix_tokens"]["value"] == max(sum(f["prefix"]) for f in forwards)
    assert facts["header"]["pool"] == lines[0]["pool"]
    assert found["hints"] == [f"kvcanary replay {trace}"]
    text = call(capsys, "inspect", str(trace)).out
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("  checks")] == [
        facts["checks"]
    ]


def test_trace_with_gaps_and_undeclared_events(capsys, trace, tmp_path):
    lines = trace.read_text().splitlines()
    header = json.loads(lines[0]) | {"records": ["bind"], "state": "unknown"}
    path = write(tmp_path, json.dumps(header), *lines[1:], '{"ev":"gap","forwards":2}', '{"ev":"gap"}')
    found = report(capsys, path)
    texts = [quirk["text"] for quirk in found["quirks"]]
    kinds = set(found["trace"]["events_by_kind"]) - {"forward", "gap", "bind"}
    left_out = "events, which the header's `records` leaves out"
    assert {text for text in texts if left_out in text} == {f'has "{kind}" {left_out}' for kind in kinds}
    assert kinds
    assert "gap in the recording, an unknown number of forwards are lost" in texts
    assert any(text.startswith("recorder joined a running engine") for text in texts)
    assert (found["trace"]["gaps"], found["trace"]["lost_forwards"]) == (2, None)


def test_a_trace_that_is_cut(capsys, trace, tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(trace.read_bytes()[:-4])
    assert call(capsys, "inspect", str(path)).code == 2
    found = report(capsys, path, "--skip-bad-lines", code=4)
    assert found["coverage"]["truncated"] == len(trace.read_text().splitlines())


def test_limit_of_a_trace(capsys, trace):
    found = report(capsys, trace, "--limit-requests", "2")
    assert (found["trace"]["requests"], found["coverage"]["limited"]) == (2, {"requests": 2})


def test_standard_input(trace):
    done = spawn("inspect", "-", "--format", "json", stdin=trace.read_text())
    found = json.loads(done.out)
    assert (done.code, found["trace"]["forwards"], found["hints"]) == (0, 30, [])
    text = (CSV / "vidur.csv").read_text()
    done = spawn("inspect", "-", "--input-format", "vidur", "--format", "json", stdin=text)
    found = json.loads(done.out)
    assert (done.code, found["requests"]["requests"], found["hints"]) == (0, 11, [])
    done = spawn("inspect", "-", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert "hint: a request trace that comes through a pipe needs `--input-format NAME`" in done.err


def test_a_named_pipe_is_read_once(capsys, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[(CSV / "vidur.csv").read_bytes()], daemon=True)
    writer.start()
    found = report(capsys, pipe, "--input-format", "vidur")
    writer.join()
    assert (found["requests"]["requests"], found["requests"]["prompt_tokens"]["total"]) == (11, 24_441)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--block-size", "16"],
            "`--block-size` is for request traces, a trace v1 has its page size in its header",
        ),
        (["--input-format", "azur"], "`--input-format` is 'azur', known are "),
    ],
)
def test_flags_that_do_not_fit(capsys, trace, flags, message):
    done = call(capsys, "inspect", str(trace), *flags)
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")


def test_the_file_is_not_written_over(capsys, tmp_path):
    path = write(tmp_path, row(0, 8))
    done = call(capsys, "inspect", path, "--output", path)
    assert (done.code, Path(path).read_text()) == (2, row(0, 8) + "\n")
    assert "would write over" in done.err


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4bb3\nsize 52283111\n"
GZIPPED = gzip.compress(MOONCAKE.read_bytes(), mtime=0)
REFUSED = {
    "empty": (b"", "no records (the file is empty)"),
    "blank": (b"\n  \r\n\t\n", "no records"),
    "lfs": (POINTER, "is a Git LFS pointer, not the data (size of the data: 52,283,111 bytes)"),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>\n", "looks like a web page, not like data"),
    "utf-16": ('{"timestamp": 1}\n'.encode("utf-16"), "is UTF-16 text, UTF-8 is needed"),
    "gzip-truncated": (
        GZIPPED[: len(GZIPPED) // 2],
        "the compressed data ends too early, the file is truncated",
    ),
    "gzip-of-nothing": (gzip.compress(b"", mtime=0), "no records (the archive holds an empty file)"),
    "pickle": (
        b"\x80\x04\x95\x10\x00\x00\x00}\x94",
        "is a pickle; loading it would run code, so it is refused",
    ),
    "torch-zip": (b"PK\x03\x04\x00\x00archive/data.pkl", "is a zip archive (as of torch.save or npz)"),
    "json-array": (b'[{"timestamp": 1}]\n', "is a JSON array, one object per line is expected"),
    "binary": (b"abc\x00\x01\x02" * 50, "is binary: byte 0x00 at offset 3"),
    "latin-1": (b"TIMESTAMP,ContextTokens,Gr\xf6sse\n", "byte 0xf6 at offset 26 is not UTF-8 text"),
    "text": (b"Dear diary\n", "the format is not known, the first line is: Dear diary"),
}


@pytest.mark.parametrize("command", ["inspect", "replay"])
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_wrong_kinds_of_file(capsys, tmp_path, command, case, name):
    data, message = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(data)
    done = call(capsys, command, str(path))
    assert (done.code, done.out) == (2, "")
    first = done.err.splitlines()[0]
    assert first.startswith(f"error: {path}")
    assert message in first


@pytest.mark.parametrize("command", ["inspect", "replay"])
def test_paths_that_lead_nowhere(capsys, tmp_path, command):
    done = call(capsys, command, "no/such.jsonl")
    assert (done.code, done.err.splitlines()[0]) == (2, "error: no/such.jsonl: no such file")
    done = call(capsys, command, str(tmp_path))
    assert (done.code, done.err.splitlines()[0]) == (
        2,
        f"error: {tmp_path}: is a directory, a file is needed",
    )


@pytest.mark.parametrize("command", ["inspect", "replay"])
@pytest.mark.parametrize("name", ["no-requests-sim", "no-requests-timeseries", "no-requests-servegen"])
def test_tables_without_requests(capsys, command, name):
    path = CSV / f"{name}.csv"
    done = call(capsys, command, str(path))
    assert done.code == 2
    assert done.err.startswith(f"error: {path}:1: ")
    assert "request" in done.err.splitlines()[0]


@pytest.mark.parametrize("command", ["inspect", "replay"])
@pytest.mark.parametrize(
    "pack",
    [lambda data: b"\xef\xbb\xbf" + data, lambda data: gzip.compress(data), lambda data: data.rstrip()],
    ids=["bom", "gzip-named-csv", "no-last-newline"],
)
def test_what_is_accepted(capsys, tmp_path, command, pack):
    path = tmp_path / "t.csv"
    path.write_bytes(pack((CSV / "splitwise-sim.csv").read_bytes()))
    done = call(capsys, command, str(path), "--quiet")
    assert (done.code, done.err) == (0, "")
