"""`kvcanary scrub`: verdicts, reports in every form, and every refusal."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest

from kvcanary_cli.trace.safetensors import open_safetensors
from kvcanary_cli.trace.safetensors_writer import write_safetensors
from tests.cli import ROOT, call, imported_by, spawn_without
from tests.scrub.dumps import arrays, dump

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
)


@pytest.fixture
def two(tmp_path):
    """A dump, and another in which slots 8 to 11 differ in k.3, and 10 to 12 in v.10."""
    tensors = arrays()
    before = dump(tmp_path / "before", tensors)
    tensors["k.3"][8:12] ^= 1
    tensors["v.10"][10:13] ^= 1
    return before, dump(tmp_path / "after", tensors)


def scrub(capsys, *argv: str):
    return call(capsys, "scrub", *argv, "--device", "cpu")


def report_of(capsys, code: int, *argv: str) -> dict:
    done = scrub(capsys, *argv, "--format", "json")
    assert (done.code, done.err) == (code, "")
    report = json.loads(done.out)
    VALIDATOR.validate(report)
    return report


def refused(capsys, *argv: str) -> str:
    done = scrub(capsys, *argv)
    assert (done.code, done.out) == (2, "")
    return done.err


def test_one_dump(capsys, two):
    done = scrub(capsys, two[0])
    assert (done.code, done.err) == (0, "")
    assert "pool      40 slots, 22 tensors\n" in done.out
    assert "  hashed  40 slots, 28,160 bytes\n" in done.out
    assert "  zero    no slot is zero in every tensor\n" in done.out
    assert "  copies  no two slots have the same content, zeros apart\n" in done.out
    assert re.search(
        r"^  speed +\S+ GB/s end to end in \S+ s \(read \S+ GB/s, kernel \S+ GB/s\)$", done.out, re.M
    )
    assert "status: PASS   40 slots hashed, compared with nothing\n" in done.out
    assert re.search(
        r"^kvcanary: PASS scrub slots=40 bytes=28160 zero=0 duplicates=0 changed=- unexpected=- "
        r"digest=[0-9a-f]{32} exit=0\n\Z",
        done.out,
        re.M,
    )


def test_all_that_depends_on_the_clock_is_under_timing(capsys, two):
    one, again = (report_of(capsys, 0, two[0]) for _ in range(2))
    assert set(one["timing"]) >= {
        "read_seconds",
        "kernel_seconds",
        "hash_seconds",
        "end_to_end_gb_per_second",
    }
    assert one["timing"]["copy_seconds"] is None
    assert {**one, "timing": 0} == {**again, "timing": 0}


def test_slots_that_changed_are_findings(capsys, two):
    report = report_of(capsys, 1, two[1], "--against", two[0], "--page-size", "4", "--flat")
    assert report["changed"] == {
        "slots": 5,
        "unexpected_slots": 5,
        "allowed_slots": 0,
        "written_but_unchanged_slots": 0,
        "num_ranges": 3,
        "ranges": [
            {"slots": [8, 9], "pages": [2, 2], "allowed": False, "tensors": ["k.3"]},
            {"slots": [10, 11], "pages": [2, 2], "allowed": False, "tensors": ["k.3", "v.10"]},
            {"slots": [12, 12], "pages": [3, 3], "allowed": False, "tensors": ["v.10"]},
        ],
        "tensors": [{"name": "k.3", "slots": 4}, {"name": "v.10", "slots": 3}],
    }
    assert report["against"]["kind"] == "dump"
    assert report["pool"] == {"slots": 40, "pages": 10, "page_size": 4, "tensors": 22, "bytes_per_slot": 704}


def test_text_of_slots_that_changed(capsys, two):
    done = scrub(capsys, two[1], "--against", two[0], "--written", "8-11,30")
    assert done.code == 1
    assert "  1 written slot did not change\n" in done.out
    assert re.search(r"^ +12  12 +unexpected  1: v.10$", done.out, re.M)
    assert re.search(r"^ +10-11  10-11 +written +2: k.3 v.10$", done.out, re.M)
    assert re.search(r"^  k.3 +4\n  v.10 +3$", done.out, re.M)
    assert "status: FAIL   1 of 40 slots changed and were not allowed to\n" in done.out
    assert f"next:   kvcanary scrub {two[1]} --against {two[0]} --only-slots 12 -v\n" in done.out
    assert " changed=5 unexpected=1 " in done.out.splitlines()[-1]


def test_slots_that_may_change(capsys, two):
    done = scrub(capsys, two[1], "--against", two[0], "--written", "8-9", "--written", "10-12")
    assert done.code == 0
    assert "40 slots compared: 5 changed, all of them allowed to" in done.out
    assert scrub(capsys, two[0], "--against", two[0]).out.count("  no slot changed\n") == 1


def test_a_range_ends_where_the_slots_that_may_change_do(capsys, two):
    report = report_of(capsys, 1, two[1], "--against", two[0], "--written", "8")
    rows = [(row["slots"], row["allowed"]) for row in report["changed"]["ranges"]]
    assert rows == [([9, 9], False), ([10, 11], False), ([12, 12], False), ([8, 8], True)]


def test_only_some_slots(capsys, two):
    done = scrub(capsys, two[1], "--against", two[0], "--only-slots", "0-7,13-39")
    assert done.code == 0
    assert "35 slots (87.5% of the pool) compared, none changed" in done.out
    report = report_of(capsys, 1, two[1], "--against", two[0], "--only-slots", "12")
    assert (report["coverage"]["compared_slots"], report["changed"]["slots"]) == (1, 1)


def test_saved_hashes_say_the_same_as_their_dump(capsys, two, tmp_path):
    saved = str(tmp_path / "h")
    done = scrub(capsys, two[0], "--write-hashes", saved)
    assert re.search(rf"^  saved +{saved}, \d+\.\d KiB$", done.out, re.M)
    file = open_safetensors(saved)
    assert len(file.tensors) == 23
    assert file.metadata["digest"] in done.out
    with_dump = report_of(capsys, 1, two[1], "--against", two[0])
    with_hashes = report_of(capsys, 1, two[1], "--against", saved)
    assert with_hashes["against"]["kind"] == "hashes"
    assert with_hashes["changed"] == with_dump["changed"]


def test_some_tensors(capsys, two):
    report = report_of(capsys, 0, two[1], "--against", two[0], "--tensors", "k.[0-2]", "--tensors", "v.?")
    assert [row["name"] for row in report["tensors"]][:4] == ["k.0", "k.1", "k.2", "v.0"]
    left_out = report["coverage"]["tensors_left_out"]
    assert left_out[-1] == {"name": "v.10", "bytes": 1280, "reason": "not named by --tensors"}
    done = scrub(capsys, two[1], "--tensors", "k.0")
    assert re.search(r"^  left out +k.1 k.2 k.3 ... 18 more: not named by --tensors$", done.out, re.M)


def test_numbers_and_empty_tensors_are_left_out(capsys, tmp_path):
    tensors = {"k": np.ones((4, 16), np.int8), "step": np.int64(7), "none": np.ones((9, 0), np.int8)}
    write_safetensors(tmp_path / "a", tensors)
    done = scrub(capsys, str(tmp_path / "a"))
    assert re.search(
        r"^  left out +step: a single number, no slots\n  left out +none: no bytes in it$", done.out, re.M
    )
    assert re.search(r"^  copies +4 slots with 1 content: 0-3$", done.out, re.M)


def test_pages(capsys, tmp_path):
    write_safetensors(tmp_path / "a", {"k": np.arange(96, dtype=np.uint32).reshape(3, 8, 4)})
    report = report_of(capsys, 0, str(tmp_path / "a"), "--page-size", "8")
    assert report["pool"] == {"slots": 24, "pages": 3, "page_size": 8, "tensors": 1, "bytes_per_slot": 16}
    done = scrub(capsys, str(tmp_path / "a"), "--page-size", "4")
    assert "tensor 'k' has shape [3, 8, 4], [pages, 4, ...] is expected with `--page-size 4`" in done.err
    assert "hint: `--flat` where the first dimension counts slots" in done.err


def test_padding_is_told(capsys, tmp_path):
    write_safetensors(tmp_path / "a", {"k": np.zeros((4, 5), np.int8)})
    done = scrub(capsys, str(tmp_path / "a"))
    assert "  padding  44 zero bytes after rows that are no multiple of 16\n" in done.out
    assert "  zero     4 slots: 0-3\n" in done.out


def test_nan_is_a_warning(capsys, tmp_path):
    values = np.ones((6, 8), np.float16)
    values[2, 3], values[4:, 1] = np.nan, np.inf
    write_safetensors(tmp_path / "a", {"k": values, "n": np.zeros((6, 1), np.int8)})
    done = scrub(capsys, str(tmp_path / "a"), "--values")
    assert done.code == 0
    assert re.search(r"^  k +1 +2  2, 4-5$", done.out, re.M)
    assert "  not checked: n (no floats that have them)\n" in done.out
    assert "compared with nothing; 1 tensor with NaN or" in done.out
    assert " warnings=1 exit=0" in done.out
    assert scrub(capsys, str(tmp_path / "a"), "--values", "--strict").code == 1
    write_safetensors(tmp_path / "b", {"k": np.ones((6, 8), np.float16)})
    assert "  no NaN and no infinity in 1 tensor\n" in scrub(capsys, str(tmp_path / "b"), "--values").out


def test_long_tables_are_cut_and_say_so(capsys, tmp_path):
    tensors = arrays(num_slots=300, layers=1)
    before = dump(tmp_path / "before", tensors)
    tensors["k.0"][::2] ^= 1
    after = dump(tmp_path / "after", tensors)
    done = scrub(capsys, after, "--against", before)
    assert "  ... 100 more rows of 150 slots (-v, or --format json)\n" in done.out
    everything = scrub(capsys, after, "--against", before, "-v").out
    assert len(re.findall(r"unexpected  1: k.0", everything)) == 150
    assert re.search(r"^  k.0 +BF16 +\[300, 2, 8\] +32$", everything, re.M)


def test_other_forms(capsys, two, tmp_path):
    done = scrub(capsys, two[1], "--against", two[0], "--format", "github")
    assert "::error title=kvcanary scrub%3A slots 8-9::changed in k.3 and were not allowed to\n" in done.out
    lines = scrub(capsys, two[1], "--format", "jsonl", "--chunk-mib", "1").out.splitlines()
    assert [json.loads(line)["type"] for line in (lines[0], lines[-1])] == ["start", "summary"]
    quiet = scrub(capsys, two[0], "--quiet", "--output", str(tmp_path / "r.json"))
    assert quiet.out.count("\n") == 1
    VALIDATOR.validate(json.loads((tmp_path / "r.json").read_text()))


def test_words_that_do_not_fit_together(capsys, two, tmp_path):
    assert "`--written` needs something to compare with" in refused(capsys, two[0], "--written", "1")
    assert "`--only-slots` needs something to compare with" in refused(capsys, two[0], "--only-slots", "1")
    assert "`--flat` needs `--page-size`" in refused(capsys, two[0], "--flat")
    assert "the file name of `--write-hashes` is empty" in refused(capsys, two[0], "--write-hashes", "")
    err = refused(capsys, two[0], "--write-hashes", str(tmp_path / "no" / "h"))
    assert "`--write-hashes` needs a file in a folder that exists" in err
    for flag in ("--write-hashes", "--output"):
        assert f"`{flag}` would write over {two[0]}, the file of `FILE`" in refused(
            capsys, two[0], flag, two[0]
        )
    err = refused(capsys, two[0], "--against", two[1], "--output", two[1])
    assert f"`--output` would write over {two[1]}, the file of `--against`" in err
    both = str(tmp_path / "x")
    err = refused(capsys, two[0], "--write-hashes", both, "--output", both)
    assert f"`--output` would write over {both}, the file of `--write-hashes`" in err


RANGES = {
    "words": ("a-b", "has 'a-b', slots are written as in 0-15,20"),
    "empty": ("1,,2", "has '', slots are written as in 0-15,20"),
    "other digits": ("\u0661", "slots are written as in 0-15,20"),
    "backwards": ("9-8", "has 9-8, which ends before it begins"),
    "outside": ("8-40", "has slot 40, the pool has slots 0 to 39"),
}


@pytest.mark.parametrize("case", RANGES)
def test_ranges_that_are_refused(capsys, two, case):
    text, message = RANGES[case]
    assert message in refused(capsys, two[0], "--against", two[1], "--written", text)


def test_pools_that_are_refused(capsys, tmp_path):
    path = tmp_path / "a"
    write_safetensors(path, {"k.0": np.zeros((4, 16)), "k.1": np.zeros((4, 16)), "table": np.zeros((7, 2))})
    err = refused(capsys, str(path))
    assert "the tensors don't agree about the number of slots: 4 in 2 (k.0, k.1); 7 in 1 (table)" in err
    assert "hint: `--tensors 'k.0'` names what to take" in err
    assert scrub(capsys, str(path), "--tensors", "k.*").code == 0
    err = refused(capsys, str(path), "--tensors", "k_0")
    assert "`--tensors` 'k_0' names none of the 3 tensors" in err
    assert "did you mean k.0?" in err
    assert "there are k.0, k.1, table" in refused(capsys, str(path), "--tensors", "zzz*")
    write_safetensors(path, {"step": np.int64(1)})
    assert "none of the 1 tensors has slots" in refused(capsys, str(path))
    write_safetensors(path, {"k": np.zeros((0, 16))})
    assert "the pool has no slots" in refused(capsys, str(path))


def test_a_slot_of_half_bytes(capsys, tmp_path):
    from kvcanary_cli.trace.safetensors_writer import RawTensor

    raw = RawTensor(dtype="F4", shape=(2, 3), data=np.zeros(3, np.uint8))
    write_safetensors(tmp_path / "a", {"k": raw})
    err = refused(capsys, str(tmp_path / "a"))
    assert "tensor 'k' has 3 bytes for 2 slots: a slot has no whole number of bytes" in err


def test_dumps_that_can_not_be_compared(capsys, tmp_path):
    one = dump(tmp_path / "one", arrays(layers=1))
    others = {
        "slots": (arrays(num_slots=41, layers=1), f"has 41 slots, {one} has 40: they can't be compared"),
        "less": ({"k.0": arrays(layers=1)["k.0"]}, f"has no tensor 'v.0', {one} has"),
        "width": (arrays(layers=1, width=4), "tensor 'k.0' has 16 bytes a slot, 32 in "),
    }
    for name, (tensors, message) in others.items():
        other = dump(tmp_path / name, tensors)
        assert message in refused(capsys, one, "--against", other)
        assert scrub(capsys, other, "--write-hashes", str(tmp_path / "h")).code == 0
        assert message in refused(capsys, one, "--against", str(tmp_path / "h"))
    more = dump(tmp_path / "more", arrays(layers=2))
    err = refused(capsys, one, "--against", more)
    assert f"{one}: has no tensor 'k.1' and 1 more, {more} has" in err


def saved_with(path, target, *, metadata=(), tensors=()):
    file = open_safetensors(str(path))
    arrays_of = {name: np.array(file.array_of(name)) for name in file.tensors}
    changed = {name: value for name, value in {**arrays_of, **dict(tensors)}.items() if value is not None}
    texts = {name: text for name, text in {**file.metadata, **dict(metadata)}.items() if text is not None}
    write_safetensors(target, changed, texts)
    return str(target)


def test_saved_hashes_that_are_refused(capsys, two, tmp_path):
    saved = tmp_path / "h"
    assert scrub(capsys, two[0], "--write-hashes", str(saved)).code == 0
    assert "holds saved hashes, not a pool" in refused(capsys, str(saved))
    bad = tmp_path / "bad"
    cases = [
        (
            {"metadata": {"kvcanary.hashes": "2"}},
            "the hashes are of version 2, this kvcanary compares version 1",
        ),
        ({"metadata": {"row_bytes": None}}, "the saved hashes are damaged ('row_bytes')"),
        ({"metadata": {"row_bytes": "[1"}}, "the saved hashes are damaged ("),
        ({"metadata": {"page_size": "x"}}, "the saved hashes are damaged (invalid literal"),
        (
            {"tensors": {"tensor/k.0": None}},
            "the saved hashes are damaged (other tensors than its header names)",
        ),
        ({"tensors": {"tensor/k.0": np.zeros(3, np.uint64)}}, "are damaged (tensors of several lengths)"),
        ({"tensors": {"slots": np.zeros(40, np.uint64)}}, "are damaged: their digest is "),
    ]
    for change, message in cases:
        saved_with(saved, bad, **change)
        assert message in refused(capsys, two[0], "--against", str(bad))


def test_a_file_that_shrinks_while_it_is_read(capsys, two, monkeypatch):
    from kvcanary_cli.scrub import run

    def shrink(path, selection):
        pool = opened(path, selection)
        with open(path, "r+b") as file:
            file.truncate(pool.file.num_bytes - 10)
        return pool

    opened = run.open_pool
    monkeypatch.setattr(run, "open_pool", shrink)
    assert "it shrank while it was read" in refused(capsys, two[0])


def test_what_the_machine_lacks(capsys, two, monkeypatch):
    assert call(capsys, "scrub", two[0], "--device", "cuda:999").code == 3
    done = scrub(capsys, two[0], "--threads", "10000")
    assert done.code == 3
    assert "`--threads 10000` was asked for" in done.err
    assert scrub(capsys, two[0], "--threads", "1").code == 0
    monkeypatch.setattr("kvcanary_cli.scrub.run.free_host_memory", lambda: 1000)
    done = scrub(capsys, two[0])
    assert (done.code, "of host memory, 0.0 MiB are free" in done.err) == (3, True)


def test_a_cpu_needs_neither_torch_nor_triton(two):
    assert imported_by("scrub", two[0], "--device", "cpu") & {"torch", "triton"} == set()
    assert imported_by("scrub", "--help") & {"torch", "triton", "numba", "numpy"} == set()
    done = spawn_without({"numba"}, "scrub", two[0], "--device", "cpu")
    assert (done.code, "error: scrub needs numba, which is not installed" in done.err) == (3, True)
