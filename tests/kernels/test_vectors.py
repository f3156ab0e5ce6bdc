"""Running folders of vectors: what passes, what is told when one differs, and what is no vector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcanary_cli.errors import InputError, MissingError, UsageError
from kvcanary_cli.kernels._vector_backends import load_backend
from kvcanary_cli.kernels.vectors import PACKAGED_VECTORS, load_vector, run_vector, run_vectors

GOLDEN = Path(__file__).parents[1] / "golden"


def test_all_golden_vectors_pass():
    # the operations' own tests run them on the other implementations
    result = run_vectors(GOLDEN, "reference")
    assert (result.passed, result.failed, result.failures) == (300, 0, [])


def test_packaged_vectors_pass(backend, device):
    result = run_vectors(PACKAGED_VECTORS, backend.name, device=device)
    assert (result.passed, result.failed, result.failures) == (8, 0, [])


def test_packaged_vectors_cover_every_operation_and_stay_small():
    paths = list(PACKAGED_VECTORS.glob("*.npz"))
    assert {path.name.partition("_")[0] for path in paths} == {"plan", "verify", "write", "scatter"}
    assert sum(path.stat().st_size for path in paths) < 60 * 1024
    for path in paths:
        assert path.read_bytes() == (GOLDEN / path.name).read_bytes()


def copy_with(tmp_path: Path, name: str, **changes: object) -> Path:
    """A golden vector in a folder of its own, with arrays or scalars changed."""
    with np.load(GOLDEN / f"{name}.npz") as content:
        arrays = {key: content[key] for key in content.files}
    meta = json.loads(str(arrays["meta"]))
    for key, value in changes.items():
        if key in arrays:
            arrays[key] = value(arrays[key].copy())
        else:
            meta[key] = value
    arrays["meta"] = np.array(json.dumps(meta))
    np.savez(tmp_path / f"{name}.npz", **arrays)
    return tmp_path / f"{name}.npz"


def add_one(index):
    def change(array):
        array.reshape(-1)[index] += 1
        return array

    return change


@pytest.mark.parametrize(
    ("name", "output", "index", "difference"),
    [
        ("plan_116", "out_verify_slot_indices", 2, "out_verify_slot_indices[2] is "),
        ("plan_116", "out_enable", 0, "out_enable[0] is 1, expected 2 "),
        ("plan_018", "out_write_offsets", 3, "out_write_offsets[3] is "),
        ("write_045", "out_canary_buf", 6, "out_canary_buf[1, 2] is -2414019407054260458, expected "),
        ("verify_008", "out_slot_run_counter", 0, "out_slot_run_counter[0] is 21, expected 22 "),
        ("scatter_001", "out_pool", 5, "out_pool[0, 5] is "),
    ],
)
def test_a_difference_is_told(name, output, index, difference, tmp_path):
    path = copy_with(tmp_path, name, **{output: add_one(index)})
    told = run_vector(load_vector(path), load_backend("reference"))
    assert told is not None
    assert told.startswith(difference)
    assert told.endswith("(1 elements differ)")


def test_a_row_that_differs_is_told(tmp_path):
    copy_with(tmp_path, "write_045", out_ring=add_one(2))
    result = run_vectors(tmp_path, "numba")
    assert (result.passed, result.failed) == (0, 1)
    assert result.failures[0].startswith("write_045.npz: out_ring: row [5, 4, 48, 155874, 155875, ")
    assert result.failures[0].endswith(" is unexpected (1 unexpected, 1 missing)")


def test_an_overflowing_ring_may_keep_any_true_row_but_no_other(reference):
    vector = next(
        vector
        for vector in map(load_vector, sorted(GOLDEN.glob("write_*.npz")))
        if vector.arrays["out_write_index"][0] > vector.meta["ring_capacity"] > 1
    )

    def keep_the_last_rows(*, log, **arguments):
        whole = reference.log.allocate(64, "cpu")
        reference.write(log=whole, **arguments)
        for counter in ("write_index", "slot_run_counter", "kernel_run_counter"):
            getattr(log, counter)[:] = getattr(whole, counter)
        log.ring[:] = whole.rows()[-len(log.ring) :]

    def keep_a_wrong_row(*, log, **arguments):
        reference.write(log=log, **arguments)
        log.ring[0, 0] += 1

    assert run_vector(vector, replace(reference, write=keep_the_last_rows)) is None
    told = run_vector(vector, replace(reference, write=keep_a_wrong_row))
    assert told is not None
    assert told.startswith("out_ring: row ")


def test_entries_written_by_an_overflowing_plan_are_told(reference):
    def write_one(*, verify_plan_out, **arguments):
        reference.plan(verify_plan_out=verify_plan_out, **arguments)
        verify_plan_out.verify_slot_indices[-1] = 1

    told = run_vector(load_vector(GOLDEN / "plan_018.npz"), replace(reference, plan=write_one))
    assert told == "out_verify_slot_indices was written although the plan overflows"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plan_1.npz", b"not a zip file", "the file is not a kernel vector: "),
        ("plan_1.npz", b"", "the file is not a kernel vector: "),
        ("plan_1.npz", b"PK\x03\x04 and then nothing", "the file is not a kernel vector: "),
    ],
)
def test_files_that_are_no_vectors(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        run_vectors(tmp_path, "reference")
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")


def test_an_npz_of_something_else(tmp_path):
    np.savez(tmp_path / "plan_1.npz", weights=np.zeros(3))
    with pytest.raises(InputError, match=r"plan_1\.npz: the file is not a kernel vector: 'meta'"):
        run_vectors(tmp_path, "reference")


def test_a_name_without_operation(tmp_path):
    copy_with(tmp_path, "plan_008").rename(tmp_path / "decode_008.npz")
    with pytest.raises(
        InputError, match=r"a vector is named after its operation \(plan, verify, write, scatter\)"
    ):
        run_vectors(tmp_path, "reference")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"in_req_to_token": lambda a: a.astype(np.int64)},
            "the vector can't be run: kv-canary: req_to_token must have",
        ),
        (
            {"verify_capacity": 0},
            "the vector can't be run: kv-canary: VerifyPlan verify_capacity must be positive",
        ),
    ],
)
def test_a_vector_that_no_launcher_takes(changes, message, tmp_path):
    path = copy_with(tmp_path, "plan_008", **changes)
    with pytest.raises(InputError) as caught:
        run_vectors(tmp_path, "numba")
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_vector_that_lacks_something(tmp_path):
    with np.load(GOLDEN / "scatter_001.npz") as content:
        arrays = {key: content[key] for key in content.files if key != "in_flat"}
    np.savez(tmp_path / "scatter_001.npz", **arrays)
    with pytest.raises(InputError, match=r"scatter_001\.npz: the vector has no in_flat"):
        run_vectors(tmp_path, "reference")


def test_folders_without_vectors(tmp_path):
    with pytest.raises(InputError, match=r"a folder of vectors was expected, but it has no \.npz files"):
        run_vectors(tmp_path, "reference")
    with pytest.raises(InputError, match="a folder of vectors was expected, but it is not a folder"):
        run_vectors(tmp_path / "none", "reference")


def test_unknown_backend():
    with pytest.raises(UsageError, match="backend numbra is not one of reference, numba, triton") as caught:
        run_vectors(PACKAGED_VECTORS, "numbra")
    assert caught.value.hint == "did you mean numba?"


def run_module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "kvcanary_cli.kernels.vectors", *arguments],
        env=clean | {"PYTHONPATH": str(GOLDEN.parents[1])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_module_prints_one_line_of_json():
    done = run_module(str(PACKAGED_VECTORS), "reference")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"passed": 8, "failed": 0, "failures": []}


def test_the_module_says_what_it_needs():
    done = run_module("only-one-argument")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: python -m kvcanary_cli.kernels.vectors FOLDER BACKEND\n"


def test_triton_without_gpu_and_interpreter_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        MissingError, match="backend triton was asked for device cuda:0, but no GPU is visible"
    ):
        run_vectors(PACKAGED_VECTORS, "triton", device="cuda:0")
