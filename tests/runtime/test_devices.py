"""Which device a run gets, with the driver's answers given by the test."""

from __future__ import annotations

import pytest

from kvcanary_cli.errors import MissingError, UsageError
from kvcanary_cli.runtime import devices
from kvcanary_cli.runtime.devices import Gpu, Survey, pick_device
from tests.cli import imported_by, python

H200 = Gpu(index=0, name="NVIDIA H200", capability=(9, 0), memory_bytes=150_754_820_096)
NONE = Survey(problem="no GPU visible")


@pytest.fixture
def machine(monkeypatch):
    """A machine with these GPUs, packages, and CUDA versions of driver and torch."""

    def use(found: Survey, *, missing: tuple[str, ...] = (), torch: tuple[int, int] | None = (13, 0)) -> None:
        monkeypatch.setattr(devices, "survey", lambda: found)
        monkeypatch.setattr(devices, "is_importable", lambda package: package not in missing)
        monkeypatch.setattr(devices, "torch_cuda", lambda: torch)
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    return use


def with_gpus(*gpus: Gpu) -> Survey:
    return Survey(gpus=gpus or (H200,), driver="580.65.06", cuda=(13, 0))


def test_auto_takes_the_first_gpu(machine):
    machine(with_gpus())
    choice = pick_device("auto")
    assert (choice.kind, choice.index, choice.name, choice.label) == ("cuda", 0, "NVIDIA H200", "cuda:0")


def test_auto_without_gpu_is_the_cpu_and_says_why(machine):
    machine(NONE)
    choice = pick_device("auto")
    assert (choice.kind, choice.label, choice.reason) == ("cpu", "cpu", "no GPU visible")


def test_cpu_is_never_explained_and_never_surveyed(monkeypatch):
    monkeypatch.setattr(devices, "survey", None)
    assert pick_device("cpu").reason == ""


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_was_asked_for_is_never_replaced(machine, asked):
    machine(NONE)
    with pytest.raises(MissingError) as refused:
        pick_device(asked)
    assert refused.value.message == f"`--device {asked}` was asked for, but no GPU is visible"
    assert refused.value.hint == "`kvcanary doctor` shows what was found; without the flag the CPU is used"


def test_number_beyond_the_last_gpu(machine):
    machine(with_gpus(H200, H200))
    assert pick_device("cuda:1").index == 1
    with pytest.raises(MissingError, match="cuda:2 is not there, cuda:0 to cuda:1 are visible"):
        pick_device("cuda:2")


OLD = Gpu(index=0, name="Tesla V100", capability=(7, 0), memory_bytes=1)


@pytest.mark.parametrize(
    ("found", "facts", "reason"),
    [
        (with_gpus(OLD), {}, "cuda:0 is sm_70, the kernels need sm_80"),
        (with_gpus(), {"missing": ("torch",)}, "cuda:0 is there, torch is not installed"),
        (with_gpus(), {"missing": ("triton",)}, "cuda:0 is there, triton is not installed"),
        (with_gpus(), {"torch": None}, "cuda:0 is there, torch is a build without CUDA"),
        (with_gpus(), {"torch": (14, 1)}, "cuda:0 has a driver for CUDA 13.0, torch needs 14.1"),
    ],
    ids=["old", "no-torch", "no-triton", "cpu-torch", "old-driver"],
)
def test_a_gpu_that_can_not_work(machine, found, facts, reason):
    machine(found, **facts)
    choice = pick_device("auto")
    assert (choice.kind, choice.reason) == ("cpu", reason)
    with pytest.raises(MissingError) as refused:
        pick_device("cuda")
    assert refused.value.message == f"`--device cuda` was asked for, but {reason}"
    expected = "pip install torch triton" if "missing" in facts else "kvcanary doctor"
    assert expected in refused.value.hint


def test_a_newer_minor_version_of_cuda_is_no_obstacle(machine):
    machine(with_gpus(), torch=(13, 2))
    assert pick_device("auto").kind == "cuda"


def test_interpreter_is_never_the_backend_of_an_audit(machine, monkeypatch):
    machine(with_gpus())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert pick_device("auto").kind == "cpu"


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "CUDA", "", "cuda:-1", "cpu:0"])
def test_anything_else_is_a_usage_error(asked):
    with pytest.raises(UsageError, match="known are auto, cpu, cuda and cuda:N"):
        pick_device(asked)


class Library:
    """A CUDA driver library that gives the answers of a test."""

    def __init__(self, init: int, count: int = 0) -> None:
        self.init, self.count = init, count

    def cuInit(self, flags):
        return self.init

    def cuDriverGetVersion(self, out):
        out._obj.value = 12080
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = self.count
        return 0

    def cuDeviceGet(self, out, index):
        out._obj.value = index

    def cuDeviceGetName(self, out, size, device):
        out.value = b"NVIDIA L4"

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = {75: 8, 76: 9}[attribute]

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 24 << 30


@pytest.mark.parametrize(
    ("library", "driver", "hidden", "problem"),
    [
        (None, None, None, "no GPU visible"),
        (None, "580.65.06", None, "no GPU visible: libcuda.so.1 can't be loaded"),
        (Library(100), "580.65.06", "", "no GPU visible: CUDA_VISIBLE_DEVICES is ''"),
        (Library(100), None, "", "no GPU visible"),
        (Library(0), "580.65.06", None, "no GPU visible"),
        (Library(803), "580.65.06", None, "no GPU visible: the CUDA driver reports error 803"),
    ],
    ids=["no-library", "no-libcuda", "hidden", "no-driver", "no-device", "error"],
)
def test_survey_says_why_there_is_none(monkeypatch, library, driver, hidden, problem):
    def load(name):
        if library is None:
            raise OSError
        return library

    monkeypatch.setattr(devices.ctypes, "CDLL", load)
    monkeypatch.setattr(devices, "_kernel_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = devices.survey()
    assert (found.gpus, found.problem) == ((), problem)


def test_survey_describes_each_gpu(monkeypatch):
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: Library(0, 2))
    found = devices.survey()
    assert found.cuda == (12, 8)
    assert found.gpus == tuple(
        Gpu(index=i, name="NVIDIA L4", capability=(8, 9), memory_bytes=24 << 30) for i in range(2)
    )


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = None", None),
        ("cuda: Optional[str] = '13.0'", (13, 0)),
        ("cuda = '12.8'", (12, 8)),
    ],
)
def test_cuda_version_of_torch_is_read_without_importing_it(monkeypatch, tmp_path, line, cuda):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip = None\n", encoding="utf-8")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(devices.util, "find_spec", lambda package: spec)
    assert devices.torch_cuda() == cuda


def test_choosing_imports_neither_torch_nor_triton():
    done = python(
        "-c",
        "import sys; from kvcanary_cli.runtime.devices import pick_device; pick_device('auto'); "
        "sys.exit(bool({'torch', 'triton', 'numba', 'numpy'} & set(sys.modules)))",
    )
    assert (done.code, done.err) == (0, "")
    assert not {"torch", "triton"} & imported_by("--version")
