"""`kvcanary bench` on a machine without a GPU, with small cases."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from kvcanary_cli import main
from kvcanary_cli.bench import cpu_run
from kvcanary_cli.bench.cases import PACKAGED_CASES, Case, load_cases
from kvcanary_cli.bench.inputs import hash_rows, make_inputs
from kvcanary_cli.bench.rows import TIMED, WRONG, GpuRow
from kvcanary_cli.bench.run import BenchResult
from kvcanary_cli.errors import InputError
from kvcanary_cli.kernels._sources import KvSource
from kvcanary_cli.kernels.affine_ref import affine_step
from kvcanary_cli.kernels.hashing_ref import HEAD, chain, hash_slot, signed
from kvcanary_cli.report.bench import build_bench, render_bench
from kvcanary_cli.report.frame import render_text
from kvcanary_cli.runtime.devices import DeviceChoice

SMALL = """
cases:
  - {name: decode, lanes: 4, prefix: 20, extend: 1}
  - {name: prefill, lanes: 1, prefix: 0, extend: 9}
  - {name: hashed, lanes: 2, prefix: 3, extend: 2, num_sources: 2, source_bytes: 32}
"""


@pytest.fixture
def cases_file(tmp_path):
    path = tmp_path / "cases.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main.run(["bench", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_without_a_gpu_its_rows_say_so(capsys, cases_file):
    code, out, _ = run(capsys, "--cases", str(cases_file), "--device", "cpu")
    assert code == 0
    assert len(re.findall(r"^  \w+ +- +- +no GPU ", out, re.M)) == 3
    assert re.search(r"^  decode +verify +80 +[\d.]+ x$", out, re.M)
    assert re.search(r"^  prefill +write +9 +[\d.]+ x$", out, re.M)
    assert "hashed  verify" not in out
    assert out.splitlines()[-1] == (
        "kvcanary: PASS bench cases=3 timed=0 wrong=0 copy_gb_per_second=- exit=0"
    )


def test_json_keeps_all_times_under_timing(capsys, cases_file):
    code, out, _ = run(
        capsys, "--cases", str(cases_file), "--device", "cpu", "--only", "dec", "--format", "json"
    )
    report = json.loads(out)
    assert (code, report["status"], report["wrong"], report["peer"]) == (0, "pass", [], None)
    assert [case["name"] for case in report["cases"]] == ["decode"]
    assert [row["result"] for row in report["timing"]["gpu"]] == ["no GPU"]
    assert [row["operation"] for row in report["timing"]["cpu"]] == ["verify", "write"]
    assert all(row["ratio"] > 0 for row in report["timing"]["cpu"])


def test_peer_without_a_gpu_is_told(capsys, cases_file):
    _, out, _ = run(capsys, "--cases", str(cases_file), "--device", "cpu", "--vs-sglang", "--only", "dec")
    assert "why:    SGLang's kernels were not timed: there is no GPU to run it on" in out


def test_a_wrong_result_has_no_time_and_is_a_finding(capsys, cases_file, monkeypatch):
    monkeypatch.setattr(cpu_run, "_write_of", lambda case, inputs, stamps, log: lambda: None)
    code, out, _ = run(capsys, "--cases", str(cases_file), "--device", "cpu", "--only", "prefill")
    assert code == 1
    assert re.search(r"^  prefill +write +9 +WRONG$", out, re.M)
    assert "why:    prefill, write: 0 of 9 stamps were counted" in out
    assert "status: FAIL   1 operation computed something else and has no time" in out


def test_rows_of_a_gpu():
    case = Case(name="decode", lanes=256, prefix=4096, extend=1)
    timed = GpuRow(
        case="decode",
        order="random",
        operation="verify",
        result=TIMED,
        median_us=20.0,
        p20_us=19.9,
        p80_us=20.25,
        moved_bytes=40_000_000,
    )
    wrong = GpuRow(case="decode", order="random", operation="write", result=WRONG, problem="3 stamps differ")
    choice = DeviceChoice(kind="cuda", index=0, name="a GPU", reason="")
    result = BenchResult(
        cases=[case],
        choice=choice,
        driver="580.1",
        copy_gb_per_second=4000.0,
        gpu_rows=[timed, wrong],
        cpu_rows=[],
        peer="sglang can't be imported",
    )
    report = build_bench(result, inputs={}, seconds=1.0)
    text = render_text(report, render_bench(report))
    assert re.search(r"^  decode +verify +random +20.00 +19.90 +20.25 +2,000 +50$", text, re.M)
    assert re.search(r"^  decode +write +random +WRONG +- +- +- +-$", text, re.M)
    assert "device     a GPU, cuda:0, driver 580.1" in text
    assert "copy       4,000 GB/s device to device, read and written" in text
    assert "why:    SGLang's kernels were not timed: sglang can't be imported" in text
    assert text.splitlines()[-1].endswith("cases=1 timed=1 wrong=1 copy_gb_per_second=4000.0 exit=1")


def test_no_case_left_is_a_mistake(capsys, cases_file):
    code, _, err = run(capsys, "--cases", str(cases_file), "--only", "nothing")
    assert code == 2
    assert "error: no case has nothing in its name" in err
    assert "the names are: decode; prefill; hashed" in err


def test_packaged_cases_and_the_example_are_the_same():
    example = PACKAGED_CASES.parents[2] / "configs" / "bench.yaml"
    assert example.read_bytes() == PACKAGED_CASES.read_bytes()
    assert len(load_cases()) == 8
    assert load_cases()[-1].num_written == 131_072


REFUSALS = {
    "nothing": ("", "$.cases: a list of cases was expected"),
    "not yaml": ("cases: [", "the cases can't be read: "),
    "extra": ("cases: [{name: a, lanes: 1, prefix: 1, extend: 0}]\nmore: 1", "the key more is not known"),
    "unknown": ("cases: [{name: a, lane: 1}]", "$.cases[0]: the key lane is not known"),
    "missing": ("cases: [{name: a, lanes: 1, prefix: 1}]", "$.cases[0]: the key extend is missing"),
    "not a number": (
        "cases: [{name: a, lanes: 1, prefix: many, extend: 1}]",
        "$.cases[0]: prefix is many, a whole number from 0 to 134,217,728 was expected",
    ),
    "too large": (
        "cases: [{name: a, lanes: 60000, prefix: 60000, extend: 1}]",
        "$.cases[0]: the case has 3,600,060,000 slots, from 1 to 134,217,727 fit",
    ),
    "odd bytes": (
        "cases: [{name: a, lanes: 1, prefix: 1, extend: 1, num_sources: 1, source_bytes: 24}]",
        "$.cases[0]: source_bytes is 24 with 1 sources, a multiple of 16 belongs to one source or more",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_files_that_are_refused(refusal, tmp_path):
    content, message = REFUSALS[refusal]
    path = tmp_path / "cases.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_cases(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("is_affine", [False, True])
def test_inputs_are_what_the_reference_computes(is_affine):
    case = Case(name="x", lanes=3, prefix=4, extend=2, num_sources=2, source_bytes=48)
    inputs = make_inputs(case, "random", is_affine=is_affine)
    sources = [KvSource(kv, 1, 48, 48) for kv in inputs.kv]
    step = affine_step if is_affine else chain
    for row in (1, 2, 3):
        running = HEAD
        for position, slot in enumerate(inputs.table[row].tolist()):
            token = int(inputs.written[slot, 0])
            want = [token, position, signed(running), signed(hash_slot(sources, 2, slot))]
            assert inputs.written[slot].tolist() == want
            assert inputs.stamps[slot].tolist() == (want if position < 4 else [0] * 4)
            running = step(running, token, position)
    assert sorted(inputs.table[1:].reshape(-1).tolist()) == list(range(1, 19))
    np.testing.assert_array_equal(inputs.slots, inputs.table[1:, 4:].reshape(-1))
    assert hash_rows(inputs.kv)[0] == hash_slot(sources, 2, 0)


def test_operations_are_checked_by_what_numpy_computes(device):
    import torch

    from kvcanary_cli.bench.equality import differences
    from kvcanary_cli.bench.gpu import GpuCase

    case = Case(name="x", lanes=3, prefix=6, extend=2, num_sources=2, source_bytes=144)
    gpu_case = GpuCase(case, make_inputs(case, "random"), torch.device(device))
    assert {name: differences(gpu_case, name) for name in gpu_case.launches()} == dict.fromkeys(
        ("plan_verify", "verify", "verify_both", "write_each", "write", "sweep_hash"), ""
    )
    gpu_case.inputs.written[gpu_case.inputs.slots[1], 2] += 1
    assert differences(gpu_case, "write") == "1 stamps of tag 0 differ, 0 violations"
    gpu_case.buffers.stamps[1][gpu_case.sent["table"][1, 2].long(), 1] += 1
    assert "violations in right stamps" in differences(gpu_case, "verify")
