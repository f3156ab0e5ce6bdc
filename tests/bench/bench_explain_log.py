"""Time `explain --log` on logs of 50 MB: one with few messages, one where each line is a violation, one unknown.

Run by hand: `python tests/bench/bench_explain_log.py [MB]`; pytest does not collect it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvcanary_cli.explain.grouping import collect
from kvcanary_cli.explain.log_scan import scan_file
from kvcanary_cli.kernels import messages

STAMP = "[2026-11-30 17:20:00 TP0] "
PLAIN = (
    f"{STAMP}Decode batch, #running-req: 128, #token: 524288, token usage: 0.42, throughput (token/s): 9134\n"
)
EVERY = 10_000
"""Lines between two messages of the log that has few."""


def few(line: int) -> str:
    """A server's usual lines, with a message now and then."""
    return f"{STAMP}{messages.plan_lanes(600, 512)}\n" if line % EVERY == 0 else PLAIN


def violations(line: int) -> str:
    """Nothing but violations, of changing slots."""
    return (
        f"{STAMP}kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=verify_chain_hash slot_idx={line} "
        f"position={line % 4096} stored_token=5 expected_token=-1 stored_chain_hash=0x{line:016x} "
        "expected_aux=0x00000000000000ab\n"
    )


def unknown(line: int) -> str:
    """Nothing but texts that begin like a message and are none."""
    return f"{STAMP}kv-canary: statistics of step {line}, all is well\n"


def write(path: Path, make: Callable[[int], str], num_bytes: int) -> int:
    """Write lines until the file has its size; the number of lines."""
    written = lines = 0
    with path.open("w", encoding="ascii") as file:
        while written < num_bytes:
            lines += 1
            written += file.write(make(lines))
    return lines


def main() -> None:
    """Write each log to a temporary folder and explain it once."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        for make in (few, violations, unknown):
            path = Path(folder) / f"{make.__name__}.log"
            lines = write(path, make, megabytes * 1_000_000)
            start = time.perf_counter()
            scan = scan_file(str(path))
            found = collect(scan.hits)
            seconds = time.perf_counter() - start
            groups = len(found.messages) + len(found.violations) + len(found.unknown)
            print(f"{make.__name__:10} {megabytes} MB, {lines:>9,} lines, {groups} groups: {seconds:.2f} s")


if __name__ == "__main__":
    main()
