"""Choice of the device a run uses, made without torch: only a run on a GPU should wait for its import."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from kvcanary_cli import settings
from kvcanary_cli.errors import MissingError, UsageError

MIN_CAPABILITY = (8, 0)
"""Oldest GPU architecture the kernels are compiled for and tested on."""

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute numbers of the CUDA driver API
_DOCTOR_HINT = "`kvcanary doctor` shows what was found; without the flag the CPU is used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver lists it; `index` is what `cuda:N` means in this environment."""

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the driver says.

    Args:
        gpus: visible GPUs, empty if there is none.
        driver: version of the kernel driver, None without one.
        cuda: newest CUDA version the driver can run, None without a driver.
        problem: why there is no GPU; empty if there is one.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Where a run takes place, and why there.

    Args:
        kind: `cpu` or `cuda`.
        index: number of the GPU; 0 on a CPU.
        name: the GPU's name, `cpu` on a CPU.
        reason: why this device, in words for the header of a report; empty when it was asked for.
    """

    kind: str
    index: int
    name: str
    reason: str

    @property
    def label(self) -> str:
        """`cpu` or `cuda:N`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


def pick_device(requested: str) -> DeviceChoice:
    """The device for `--device REQUESTED`: `auto`, `cpu`, `cuda` or `cuda:N`.

    Only `auto` falls back to the CPU, and then `reason` says why.

    Raises:
        UsageError: `requested` is none of these.
        MissingError: a GPU was asked for and can't be used here.
    """
    if requested == "cpu":
        return DeviceChoice(kind="cpu", index=0, name="cpu", reason="")
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", requested)
    if requested != "auto" and match is None:
        raise UsageError(f"`--device` is {requested!r}, known are auto, cpu, cuda and cuda:N")
    found = survey()
    index = int(match.group(1) or 0) if match else 0
    problem = _obstacle(found, index)
    if not problem:
        gpu = found.gpus[index]
        return DeviceChoice(
            kind="cuda", index=index, name=gpu.name, reason="" if match else "first visible GPU"
        )
    if match is None:
        return DeviceChoice(kind="cpu", index=0, name="cpu", reason=problem)
    raise MissingError(
        f"`--device {requested}` was asked for, but {_as_clause(problem)}", hint=_hint(found, index)
    )


def survey() -> Survey:
    """Ask the CUDA driver library for the GPUs; needs neither torch nor a CUDA toolkit."""
    driver = _kernel_driver()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        problem = "no GPU visible" if driver is None else "no GPU visible: libcuda.so.1 can't be loaded"
        return Survey(driver=driver, problem=problem)
    status = library.cuInit(0)
    version, number = ctypes.c_int(), ctypes.c_int()
    if status == 0:
        status = library.cuDriverGetVersion(ctypes.byref(version))
    if status == 0:
        status = library.cuDeviceGetCount(ctypes.byref(number))
    cuda = (version.value // 1000, version.value % 1000 // 10) if version.value else None
    if status == 0 and number.value:
        gpus = tuple(_describe(library, index) for index in range(number.value))
        return Survey(gpus=gpus, driver=driver, cuda=cuda)
    return Survey(driver=driver, cuda=cuda, problem=_why_none(status))


def _why_none(status: int) -> str:
    hidden = settings.cuda_visible_devices()
    if hidden is not None and driver_is_loaded():
        return f"no GPU visible: CUDA_VISIBLE_DEVICES is {hidden!r}"
    # 0 and 100 (CUDA_ERROR_NO_DEVICE) both mean that nothing is wrong, there is just no GPU
    return (
        "no GPU visible" if status in (0, 100) else f"no GPU visible: the CUDA driver reports error {status}"
    )


def driver_is_loaded() -> bool:
    """Whether the kernel has an NVIDIA driver, whatever the environment hides."""
    return _kernel_driver() is not None


def _kernel_driver() -> str | None:
    """Version of the loaded kernel driver: the first dotted number of its own line; None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"\d+(\.\d+)+", text)
    return match.group() if match else "unknown"


def _describe(library: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    label, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(label, len(label), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return Gpu(
        index=index,
        name=label.value.decode("utf-8", "replace"),
        capability=(major.value, minor.value),
        memory_bytes=memory.value,
    )


def _obstacle(found: Survey, index: int) -> str:
    """Why `cuda:<index>` can't do the work; empty if it can."""
    if not found.gpus:
        return found.problem
    if index >= len(found.gpus):
        return f"cuda:{index} is not there, {_visible(found)}"
    gpu = found.gpus[index]
    if gpu.capability < MIN_CAPABILITY:
        have, least = ("sm_{}{}".format(*pair) for pair in (gpu.capability, MIN_CAPABILITY))
        return f"cuda:{index} is {have}, the kernels need {least}"
    for package in ("torch", "triton"):
        if not is_importable(package):
            return f"cuda:{index} is there, {package} is not installed"
    built_for = torch_cuda()
    if built_for is None:
        return f"cuda:{index} is there, torch is a build without CUDA"
    if found.cuda is not None and built_for[0] > found.cuda[0]:
        return (
            f"cuda:{index} has a driver for CUDA {found.cuda[0]}.{found.cuda[1]}, "
            f"torch needs {built_for[0]}.{built_for[1]}"
        )
    if settings.is_triton_interpreted():
        return f"cuda:{index} is there, TRITON_INTERPRET keeps kernels off it"
    return ""


def _visible(found: Survey) -> str:
    last = len(found.gpus) - 1
    return "only cuda:0 is visible" if last == 0 else f"cuda:0 to cuda:{last} are visible"


def _as_clause(problem: str) -> str:
    return problem.replace("no GPU visible", "no GPU is visible")


def _hint(found: Survey, index: int) -> str:
    if index < len(found.gpus) and not (is_importable("torch") and is_importable("triton")):
        return "`pip install torch triton`"
    return _DOCTOR_HINT


def is_importable(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA version torch was built for, read from its version file; None for a build without CUDA."""
    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda(?:\s*:[^=]*)?\s*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match.group(1)), int(match.group(2))) if match else None
