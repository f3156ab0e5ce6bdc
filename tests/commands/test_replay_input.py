"""Every input of `kvcanary replay` that can be wrong: what is said of it, where, and with which exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import TraceWriter
from tests.cli import ROOT, call, spawn
from tests.replay.driving import insert, one_request, slots, small_header

TRACES = ROOT / "tests" / "traces"
EXAMPLE = ROOT / "docs" / "examples" / "mooncake-conversation.jsonl"

HEADER = (
    '{"ev":"header","format":"kvcanary-trace","version":1,'
    '"pool":{"slots":64,"page_size":4,"rows":4,"row_width":16}}'
)
FORWARD = '{"ev":"forward","rows":[1],"prefix":[0],"lens":[2],"tokens":[1,2],"slots":[8,9]}'


def write(path: Path, events: list[ev.Event]) -> str:
    with TraceWriter(str(path), small_header()) as writer:
        for event in events:
            writer.write(event)
    return str(path)


@pytest.fixture
def clean(tmp_path):
    return write(tmp_path / "clean.jsonl", one_request())


@pytest.fixture
def damaged(tmp_path):
    flip = ev.Kv(op="flip", slots=slots(10), byte=0, xor=1)
    return write(tmp_path / "bad.jsonl", insert(one_request(), 2, flip))


class TestBadInput:
    """Message on stderr, exit code 2, nothing on stdout."""

    def refused(self, capsys, path, *more: str) -> str:
        done = call(capsys, "replay", str(path), "--device", "cpu", *more)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")
        return done.err

    def test_missing_file(self, capsys, tmp_path):
        assert "no-such.jsonl" in self.refused(capsys, tmp_path / "no-such.jsonl")

    def test_empty_file(self, capsys, tmp_path):
        path = tmp_path / "empty.jsonl"
        path.touch()
        assert "no records" in self.refused(capsys, path)

    def test_git_lfs_pointer(self, capsys):
        assert "Git LFS" in self.refused(capsys, TRACES / "lfs-pointer" / "BurstGPT_1.csv")

    def test_unknown_request_format(self, capsys, tmp_path):
        path = tmp_path / "odd.jsonl"
        path.write_text('{"when": 3, "how_long": 4}\n')
        assert "not known" in self.refused(capsys, path)

    @pytest.mark.parametrize(
        ("lines", "place", "words"),
        [
            ([FORWARD], "t.jsonl:1", "header"),
            ([HEADER, FORWARD + "x"], "t.jsonl:2", "JSON"),
            ([HEADER, '{"ev":"forwards"}'], "t.jsonl:2", "forward"),
            ([HEADER, FORWARD[:-1] + ',"colour":1}'], "t.jsonl:2", "colour"),
            ([HEADER, '{"ev":"alloc","to":"A","slots":[8,64]}'], "t.jsonl:2: $.slots[1]", "0 to 63"),
            ([HEADER, '{"ev":"bind","row":4,"rid":"A"}'], "t.jsonl:2: $.row", "row 4"),
            ([HEADER, FORWARD.replace("[8,9]", "[8,9,10]")], "t.jsonl:2: $.slots", "3"),
            (
                [HEADER, FORWARD.replace('"prefix":[0]', '"prefix":[-1]')],
                "t.jsonl:2: $.prefix[0]",
                "at least 0",
            ),
            ([HEADER, FORWARD.replace('"lens":[2]', '"lens":["2"]')], "t.jsonl:2: $.lens[0]", "str"),
        ],
        ids=["no-header", "no-json", "event", "key", "slot", "row", "lengths", "negative", "string"],
    )
    def test_lines(self, capsys, tmp_path, lines, place, words):
        path = tmp_path / "t.jsonl"
        path.write_text("\n".join(lines) + "\n")
        message = self.refused(capsys, path)
        assert place in message
        assert words in message

    def test_truncated_last_line(self, capsys, tmp_path):
        path = tmp_path / "t.jsonl"
        path.write_text(HEADER + "\n" + FORWARD + "\n" + FORWARD[:30])
        message = self.refused(capsys, path)
        assert "t.jsonl:3" in message
        assert "truncated" in message or "ends inside" in message

    def test_error_as_json(self, capsys, tmp_path):
        done = call(capsys, "replay", str(tmp_path / "none.jsonl"), "--format", "json")
        error = json.loads(done.out)
        assert (error["status"], error["exit_code"], error["error"]["code"]) == ("error", 2, "input")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--hash", "some"], "known are none, partial, all"),
            (["--require", "verify_tokens"], "did you mean verify_token?"),
            (["--device", "tpu"], "known are auto, cpu, cuda"),
        ],
    )
    def test_words_that_are_not_known(self, capsys, clean, options, words):
        device = [] if "--device" in options else ["--device", "cpu"]
        done = call(capsys, "replay", clean, *device, *options)
        assert done.code == 2
        assert words in done.err

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--require", ","], "`--require` names nothing, known are chain_hash"),
            (["--expect", ""], "the file name of `--expect` is empty"),
            (["--shadows"], "`--shadows` goes with `--slots`"),
            (["--group", "full"], "`--group` needs a slot"),
            (
                ["--slot", "64", "--history"],
                "`--slot 64` was asked for, group full of this pool has slots 0 to 63",
            ),
            (["--slot", "9" * 20, "--history"], "slots 0 to 63"),
            (["--slot", "3", "--history", "--group", "swa"], "the groups of this pool are full"),
            (
                ["--incident", "1", "--slots"],
                "`--incident` is a page of its own, `--slots` belongs to another",
            ),
            (["--incident", "1", "--expect", "x.json"], "`--expect` belongs to another"),
            (["--slot", "3", "--history", "--heatmap"], "`--history` is a page of its own"),
            (["--incident", "1", "--slot", "3", "--history"], "`--history` belongs to another"),
        ],
    )
    def test_options_that_do_not_go_together(self, capsys, clean, options, words):
        assert words in self.refused(capsys, clean, *options)

    @pytest.mark.parametrize("flag", ["--output", "--save-trace"])
    @pytest.mark.parametrize("spelled", ["{}", "{}/../{}"])
    def test_the_trace_is_never_written_over(self, capsys, clean, flag, spelled):
        before = Path(clean).read_bytes()
        folder, file = Path(clean).parent, Path(clean).name
        (folder / file).parent.joinpath("sub").mkdir()
        path = str(folder / "sub" / ".." / file) if ".." in spelled else clean
        message = self.refused(capsys, clean, flag, path)
        assert f"`{flag}` would write over {path}, the file of `FILE`" in message
        assert Path(clean).read_bytes() == before

    def test_two_results_need_two_files(self, capsys, tmp_path):
        target = str(tmp_path / "x.json")
        message = self.refused(capsys, EXAMPLE, "--save-trace", target, "--output", target)
        assert f"`--output` would write over {target}, the file of `--save-trace`" in message

    def test_the_answer_sheet_is_never_written_over(self, capsys, clean, tmp_path):
        sheet = tmp_path / "answers.json"
        sheet.write_text('{"version": 1, "seed": 0, "faults": []}')
        assert "the file of `--expect`" in self.refused(
            capsys, clean, "--expect", str(sheet), "--output", str(sheet)
        )

    def test_devices_may_be_named_twice(self, capsys, clean):
        done = call(capsys, "replay", clean, "--device", "cpu", "--output", os.devnull)
        assert done.code == 0

    def test_an_answer_sheet_is_read_before_the_work(self, capsys, tmp_path):
        """A wrong sheet is told of although the trace is broken further on."""
        path = tmp_path / "t.jsonl"
        path.write_text(HEADER + "\n" + FORWARD + "\n{broken\n")
        sheet = tmp_path / "answers.json"
        sheet.write_text("{}")
        assert "no answer sheet" in self.refused(capsys, path, "--expect", str(sheet))

    @pytest.mark.parametrize(
        ("pool", "part"),
        [
            (
                '"slots":64,"page_size":4,"rows":1000000,"row_width":1000000',
                "1,000,000 rows x 1,000,000 columns",
            ),
            ('"slots":2147483640,"page_size":4,"rows":4,"row_width":16', "2,147,483,640 slots"),
        ],
    )
    def test_a_pool_beyond_memory(self, capsys, tmp_path, pool, part):
        path = tmp_path / "t.jsonl"
        path.write_text('{"ev":"header","format":"kvcanary-trace","version":1,"pool":{' + pool + "}}\n")
        done = call(capsys, "replay", str(path), "--device", "cpu")
        assert (done.code, done.out) == (3, "")
        assert "GiB of host memory" in done.err
        assert part in done.err

    def test_an_incident_that_has_no_such_slot(self, capsys, damaged):
        message = call(capsys, "replay", damaged, "--device", "cpu", "--incident", "1", "--slot", "9").err
        assert "incident 1 has no such slot: checks failed at 10" in message

    def test_save_trace_of_a_trace(self, capsys, clean, tmp_path):
        done = call(capsys, "replay", clean, "--device", "cpu", "--save-trace", str(tmp_path / "x.jsonl"))
        assert done.code == 2
        assert "trace v1 already" in done.err

    def test_capacities_with_an_unknown_key(self, capsys, clean, tmp_path):
        config = tmp_path / "limits.yaml"
        config.write_text("capacitys: {write_req: 8}\n")
        done = call(capsys, "replay", clean, "--device", "cpu", "--capacities", str(config))
        assert done.code == 2
        assert "capacities" in done.err

    def test_cuda_without_a_gpu(self, clean):
        done = spawn("replay", clean, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
        assert done.code == 3
        assert "`--device cuda` was asked for, but no GPU is visible" in done.err
