"""The runtime for a chosen device; only the one that is used gets imported."""

from __future__ import annotations

from pathlib import Path

from kvcanary_cli.errors import MissingError
from kvcanary_cli.runtime.base import Runtime
from kvcanary_cli.runtime.calls import IntArray
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.runtime.expected import ExpectedTokens
from kvcanary_cli.runtime.layout import Layout, require_memory
from kvcanary_cli.runtime.page_table import PageTable


def open_runtime(
    device: DeviceChoice,
    layout: Layout,
    table: PageTable,
    swa_map: IntArray,
    expected: ExpectedTokens,
    threads: int | None = None,
    *,
    incremental: bool = False,
) -> Runtime:
    """Memory of one run on a device.

    Args:
        incremental: verify only what something touched since its last good check (CPU).

    Raises:
        MissingError: the run does not fit, or a package is not there.
    """
    if device.kind == "cuda":
        from kvcanary_cli.runtime.ahead_gpu import open_gpu  # deferred: torch takes seconds

        return open_gpu(device, layout, table, swa_map, expected)
    import numba

    from kvcanary_cli.runtime.changes import Changes
    from kvcanary_cli.runtime.cpu import CpuRuntime

    if threads is not None:
        most = numba.get_num_threads()
        if threads > most:
            raise MissingError(f"`--threads {threads}` was asked for, {most} cores are there")
        numba.set_num_threads(threads)
    free = free_host_memory()
    if free is not None:
        require_memory(layout, free, "host memory")
    if not incremental:
        return CpuRuntime(layout, table, swa_map, expected)
    changes = Changes(layout, table.entries)
    table.changes, expected.on_change = changes, changes.expected
    return CpuRuntime(layout, table, swa_map, expected, changes)


def free_host_memory() -> int | None:
    """Bytes that can be had without swapping, None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
