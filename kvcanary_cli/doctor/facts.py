"""Facts about the machine, each a row that says what it changes when it is not as it should be."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from kvcanary_cli import settings
from kvcanary_cli.errors import MissingError
from kvcanary_cli.report.frame import installed
from kvcanary_cli.report.text import size
from kvcanary_cli.runtime.devices import DeviceChoice, Survey, is_importable, torch_cuda

OK, WARN, FAIL, SKIP = "OK", "WARN", "FAIL", "SKIP"

NEEDED_FOR = {
    "numpy": "replay and synth can't run without it",
    "numba": "replay on a CPU can't run without it",
    "msgspec": "no file can be read without it",
    "torch": "audits run on the CPU backend, Triton kernels can't be checked",
    "triton": "audits run on the CPU backend, Triton kernels can't be checked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report.

    Args:
        status: OK, WARN, FAIL or SKIP.
        consequence: what a WARN or FAIL changes for the user; empty for the others.
    """

    name: str
    status: str
    text: str
    consequence: str = ""


def python_row() -> Row:
    """The Python that runs this."""
    return Row(name="python", status=OK, text=f"{platform.python_version()}, {platform.machine()}")


def package_rows() -> list[Row]:
    """A row for each package that does heavy work; none is imported."""
    return [_package_row(package) for package in NEEDED_FOR]


def _package_row(package: str) -> Row:
    if not is_importable(package):
        return Row(
            name=package, status=WARN, text="missing: it can't be imported", consequence=NEEDED_FOR[package]
        )
    version = installed(package) or "of unknown version"
    if package == "torch":
        cuda = torch_cuda()
        version += f", built for CUDA {cuda[0]}.{cuda[1]}" if cuda else ", a build without CUDA"
    return Row(name=package, status=OK, text=version)


def gpu_row(found: Survey, choice: DeviceChoice) -> Row:
    """The GPUs the driver shows, and whether kernels can run on one of them."""
    if not found.gpus:
        driver = f"driver {found.driver}" if found.driver else "no NVIDIA driver found"
        return Row(
            name="gpu",
            status=WARN,
            text=f"none: {found.problem}, {driver}",
            consequence="audits run on the CPU backend",
        )
    gpu = found.gpus[choice.index if choice.kind == "cuda" else 0]
    cuda = "{}.{}".format(*found.cuda) if found.cuda else "unknown"
    text = (
        f"{gpu.name}, sm_{gpu.capability[0]}{gpu.capability[1]}, {size(gpu.memory_bytes, down=True)}, "
        f"driver {found.driver or 'unknown'} for CUDA {cuda}"
    )
    if len(found.gpus) > 1:
        text += f", 1 of {len(found.gpus)}"
    if choice.kind == "cuda" or not choice.reason:
        return Row(name="gpu", status=OK, text=text)
    return Row(
        name="gpu", status=WARN, text=text, consequence=f"{choice.reason}: audits run on the CPU backend"
    )


def cache_row() -> Row:
    """Whether compiled code can be kept; points the caches at a folder that can be written if need be."""
    try:
        notes = [
            prepare()
            for package, prepare in (
                ("numba", settings.prepare_numba_cache),
                ("triton", settings.prepare_triton_cache),
            )
            if is_importable(package)
        ]
    except MissingError as error:
        return Row(name="caches", status=FAIL, text=error.message, consequence=error.hint or "")
    fallbacks = [note for note in notes if note]
    if fallbacks:
        return Row(
            name="caches",
            status=WARN,
            text="; ".join(fallbacks),
            consequence="the first audit after each restart of the machine compiles again",
        )
    return Row(name="caches", status=OK, text="compiled code is kept between runs")
