"""`doctor`: rows, verdict, exit code. The processes it starts are played by the test; once they are real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from kvcanary_cli.doctor import checks, facts
from kvcanary_cli.doctor.checks import VectorRun, vector_rows
from kvcanary_cli.report.doctor import render_doctor
from kvcanary_cli.runtime.devices import DeviceChoice, Gpu, Survey
from tests.cli import ROOT, call, spawn

CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="no GPU visible")
GPU = DeviceChoice(kind="cuda", index=0, name="NVIDIA H200", reason="first visible GPU")
H200 = Gpu(index=0, name="NVIDIA H200", capability=(9, 0), memory_bytes=150_754_820_096)

GOOD = {"passed": 4, "failed": 0, "failures": []}
BAD = {"passed": 3, "failed": 1, "failures": ["verify_001.npz: out_ring[0] differs"]}
COMPILED = [
    {"kernel": kernel, "target": target, "ok": True, "error": None}
    for kernel in ("_plan_kernel", "_verify_kernel")
    for target in ("sm_80", "sm_90")
]


@pytest.fixture
def vectors(tmp_path):
    (tmp_path / "plan_000.npz").write_bytes(b"")
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    """A machine without a GPU whose child processes answer what a test says; records what was started."""
    started = []

    def use(answers: dict[str, object], *, missing: tuple[str, ...] = (), compiled=COMPILED) -> list:
        def play(command, *, env, **_):
            started.append((command, env))
            if command[3].endswith("compile_check"):
                answer: object = compiled
            else:
                answer = answers[command[5]]
            if isinstance(answer, str):
                return subprocess.CompletedProcess(command, 1, "", answer)
            if isinstance(answer, Exception):
                raise answer
            records = answer if isinstance(answer, list) else [answer]
            return subprocess.CompletedProcess(command, 0, "".join(json.dumps(r) + "\n" for r in records), "")

        monkeypatch.setattr(checks.subprocess, "run", play)
        for module in (checks, facts):
            monkeypatch.setattr(module, "is_importable", lambda package: package not in missing)
        monkeypatch.setattr("kvcanary_cli.runtime.devices.survey", lambda: Survey(problem="no GPU visible"))
        monkeypatch.setattr(facts, "installed", lambda package: "1.0")
        monkeypatch.setattr(facts, "torch_cuda", lambda: None)
        monkeypatch.setattr(facts.platform, "python_version", lambda: "3.11.7")
        monkeypatch.setattr(facts.platform, "machine", lambda: "x86_64")
        for cache in ("prepare_numba_cache", "prepare_triton_cache"):
            monkeypatch.setattr(facts.settings, cache, lambda: None)
        return started

    return use


ALL_GOOD = {"reference": GOOD, "numba": GOOD, "triton": GOOD}


def test_whole_text(capsys, machine, vectors):
    machine(ALL_GOOD)
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "  OK    python       3.11.7, x86_64\n"
        "  OK    numpy        1.0\n"
        "  OK    numba        1.0\n"
        "  OK    msgspec      1.0\n"
        "  OK    torch        1.0, a build without CUDA\n"
        "  OK    triton       1.0\n"
        "  WARN  gpu          none: no GPU visible, no NVIDIA driver found\n"
        "                     audits run on the CPU backend\n"
        "  OK    caches       compiled code is kept between runs\n"
        "  OK    reference    4 of 4 vectors equal\n"
        "  OK    numba        4 of 4 vectors equal\n"
        "  OK    interpreter  4 of 4 vectors equal\n"
        "  SKIP  on device    needs a GPU\n"
        "  OK    compile      2 of 2 Triton kernels compile for sm_80 and sm_90\n"
        "\n"
        "status: PASS   audits can run here; Triton kernels were not run on a device\n"
        "\n"
        "kvcanary: PASS doctor ok=11 warn=1 fail=0 skip=1 passed=12 failed=0 exit=0\n"
    )


def test_json_counts_by_backend(capsys, machine, vectors):
    machine(ALL_GOOD | {"numba": BAD})
    done = call(capsys, "doctor", "--vectors", str(vectors), "--format", "json")
    report = json.loads(done.out)
    assert (done.code, report["status"]) == (1, "fail")
    assert {name: (run["passed"], run["failed"]) for name, run in report["vectors"].items()} == {
        "reference": (4, 0),
        "numba": (3, 1),
        "triton": (4, 0),
    }
    assert report["vectors"]["numba"]["failures"] == BAD["failures"]
    assert report["vectors"]["triton"]["device"] == "interpreter"
    assert (report["summary"]["passed"], report["summary"]["failed"]) == (11, 1)


def test_text_has_nothing_that_json_lacks(capsys, machine, vectors):
    machine(ALL_GOOD | {"numba": BAD})
    out = call(capsys, "doctor", "--vectors", str(vectors), "--format", "json").out
    text = call(capsys, "doctor", "--vectors", str(vectors)).out
    report = json.loads(out)
    body = text.partition("\nstatus:")[0]
    for row in report["rows"]:
        for part in ("status", "name", "text", "consequence"):
            assert row[part] in body
    assert render_doctor(report).verdict == report["summary"]


def test_a_differing_vector_is_named_and_fails(capsys, machine, vectors):
    machine(ALL_GOOD | {"numba": BAD})
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert done.code == 1
    assert (
        "  FAIL  numba        3 of 4 vectors equal; differ: verify_001.npz: out_ring[0] differs\n" in done.out
    )
    assert "do not trust an audit of the numba backend on this machine" in done.out
    assert "status: FAIL   not in order: numba\n" in done.out


def test_a_row_names_three_vectors_and_counts_the_rest(capsys, machine, vectors):
    many = {"passed": 0, "failed": 5, "failures": [f"plan_{i}.npz: x" for i in range(5)]}
    machine(ALL_GOOD | {"reference": many})
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert "differ: plan_0.npz: x; plan_1.npz: x; plan_2.npz: x; ... 2 more\n" in done.out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Traceback\nSegmentation fault", "numba did not run: Segmentation fault"),
        ([], "numba did not run: ended with exit code 0, no result"),
        (subprocess.TimeoutExpired("x", 900), "numba did not run: no result after 900 s"),
    ],
    ids=["crash", "silent", "timeout"],
)
def test_a_backend_that_dies_is_a_fail_not_a_bug(capsys, machine, vectors, answer, said):
    machine(ALL_GOOD | {"numba": answer})
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert done.code == 1
    assert said in done.out


def test_interpreter_runs_in_a_process_of_its_own(capsys, machine, vectors, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    started = machine(ALL_GOOD)
    call(capsys, "doctor", "--vectors", str(vectors))
    interpreted = {command[5]: env.get("TRITON_INTERPRET") for command, env in started if len(command) > 5}
    assert interpreted == {"reference": None, "numba": None, "triton": "1"}
    assert "TRITON_INTERPRET" not in checks.settings.os.environ
    modules = {command[3]: command[4:] for command, _ in started}
    assert modules["kvcanary_cli.kernels.vectors"][0] == str(vectors)
    assert modules["kvcanary_cli.kernels.compile_check"] == []


def test_only_the_backend_asked_for(capsys, machine, vectors):
    started = machine(ALL_GOOD)
    done = call(capsys, "doctor", "--vectors", str(vectors), "--backend", "reference")
    assert len(started) == 1
    assert "  SKIP  compile    the triton backend was not asked for\n" in done.out
    assert "passed=4 failed=0" in done.out
    assert "no backend of an audit was checked" in done.out


def test_missing_packages_are_warnings_with_a_consequence(capsys, machine, vectors):
    machine(ALL_GOOD, missing=("torch", "triton", "numba"))
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert done.code == 0
    for package in ("torch", "triton", "numba"):
        row = rf"  WARN  {package} +missing: it can't be imported\n +{re.escape(facts.NEEDED_FOR[package])}\n"
        assert re.search(row, done.out)
    assert "warn=4" in done.out
    assert re.search("  SKIP  compile +needs torch and triton\n", done.out)


def test_strict_makes_warnings_count(capsys, machine, vectors):
    machine(ALL_GOOD)
    done = call(capsys, "doctor", "--vectors", str(vectors), "--strict")
    assert done.code == 1
    assert "status: FAIL   1 warning, which counts as a finding under --strict\n" in done.out


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (
            ["--backend", "trition"],
            2,
            "error: `--backend` is 'trition', known are reference, numba, triton\n\nhint: ",
        ),
        (
            ["--vectors", "/nowhere"],
            2,
            "error: /nowhere: `--vectors` needs a folder of *.npz files, this is none\n",
        ),
        (
            ["--device", "cuda"],
            3,
            "error: `--device cuda` was asked for, but no GPU is visible\n\nhint: `kvcanary",
        ),
        (
            ["--backend", "triton"],
            3,
            "error: `--backend triton` needs triton, which is not installed\n\nhint: `pip",
        ),
    ],
)
def test_refusals(capsys, machine, vectors, argv, code, error):
    machine(ALL_GOOD, missing=("triton",))
    done = call(capsys, "doctor", *argv)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(error)


def test_folder_without_vectors(capsys, machine, tmp_path):
    machine(ALL_GOOD)
    done = call(capsys, "doctor", "--vectors", str(tmp_path))
    assert (done.code, done.err) == (
        2,
        f"error: {tmp_path}: the folder holds no vectors: no file ends in .npz\n",
    )


def test_a_file_that_is_no_vector_is_bad_input(vectors):
    (vectors / "plan_000.npz").write_bytes(b"junk")
    done = spawn("doctor", "--vectors", str(vectors), "--backend", "reference")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {vectors}/plan_000.npz: the file is not a kernel vector")


def test_a_compile_failure_names_kernel_and_target(capsys, machine, vectors):
    broken = {"kernel": "_verify_kernel", "target": "sm_90", "ok": False, "error": "no\nregisters"}
    machine(ALL_GOOD, compiled=[*COMPILED[:3], broken])
    done = call(capsys, "doctor", "--vectors", str(vectors))
    assert done.code == 1
    assert "  FAIL  compile      _verify_kernel for sm_90: no registers\n" in done.out


@pytest.mark.parametrize(
    ("runs", "choice", "rows"),
    [
        ([VectorRun(backend="triton", device="cuda:0", passed=4)], GPU, [("on device", "OK")]),
        ([VectorRun(backend="numba", device="cpu", passed=4)], GPU, [("numba", "OK"), ("on device", "SKIP")]),
        (
            [VectorRun(backend="triton", device="interpreter", passed=4)],
            CPU,
            [("interpreter", "OK"), ("on device", "SKIP")],
        ),
        ([VectorRun(backend="numba", device="cpu")], CPU, [("numba", "WARN"), ("on device", "SKIP")]),
    ],
    ids=["gpu", "gpu-not-used", "interpreter", "nothing-ran"],
)
def test_device_rows(runs, choice, rows):
    assert [(row.name, row.status) for row in vector_rows(runs, choice)] == rows


def test_gpu_row_says_what_the_driver_can():
    found = Survey(gpus=(H200,), driver="580.65.06", cuda=(13, 0))
    row = facts.gpu_row(found, GPU)
    assert (row.status, row.text) == ("OK", "NVIDIA H200, sm_90, 140.4 GiB, driver 580.65.06 for CUDA 13.0")
    unusable = DeviceChoice(
        kind="cpu", index=0, name="cpu", reason="cuda:0 is there, triton is not installed"
    )
    row = facts.gpu_row(found, unusable)
    assert (row.status, row.consequence) == (
        "WARN",
        "cuda:0 is there, triton is not installed: audits run on the CPU backend",
    )


def test_cache_fallback_is_a_warning(monkeypatch):
    monkeypatch.setattr(
        facts.settings, "prepare_numba_cache", lambda: "a can't be written, code is kept in b"
    )
    monkeypatch.setattr(facts.settings, "prepare_triton_cache", lambda: None)
    row = facts.cache_row()
    assert (row.status, row.text) == ("WARN", "a can't be written, code is kept in b")


@pytest.mark.parametrize("backend", ["reference", "numba", "triton"])
def test_real_processes_agree_with_recorded_vectors(tmp_path, backend):
    for vector in ("plan_000", "scatter_000", "verify_000", "write_000"):
        shutil.copy(ROOT / "tests" / "golden" / f"{vector}.npz", tmp_path)
    done = spawn(
        "doctor", "--vectors", str(tmp_path), "--backend", backend, "--device", "cpu", "--format", "json"
    )
    assert (done.code, done.err) == (0, "")
    run = json.loads(done.out)["vectors"][backend]
    assert (run["passed"], run["failed"], run["failures"]) == (4, 0, [])


def test_a_vector_that_differs_is_found_by_a_real_process(tmp_path):
    import numpy as np

    with np.load(ROOT / "tests" / "golden" / "plan_000.npz") as content:
        arrays = dict(content)
    name = next(name for name in sorted(arrays) if name.startswith("out_") and arrays[name].size)
    arrays[name] = arrays[name] + 1
    np.savez(tmp_path / "plan_000.npz", **arrays)
    done = spawn("doctor", "--vectors", str(tmp_path), "--backend", "reference")
    assert done.code == 1
    assert "0 of 1 vectors equal; differ: plan_000.npz: " in done.out
