"""The report of `scrub` as data; `scrub_text.py` makes text of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.report.frame import Report, base_report, finish
from kvcanary_cli.report.text import to_ranges

if TYPE_CHECKING:
    from kvcanary_cli.scrub.compare import ChangedRange, Comparison
    from kvcanary_cli.scrub.run import ScrubResult, Times

MAX_RANGES = 10_000
"""Changed ranges in the JSON; the counts are always of all."""


def build_scrub(
    result: ScrubResult, *, inputs: dict[str, Any], backend: dict[str, Any], seconds: float
) -> Report:
    """The report of a scrub: a slot that changed and was not allowed to is a finding, NaN and infinity are warnings."""
    pool, comparison = result.pool, result.comparison
    packages = ("numpy", "torch", "triton") if backend["name"] == "triton" else ("numpy", "numba")
    report = base_report("scrub", inputs=inputs, pool=_pool_json(result), backend=backend, packages=packages)
    report["coverage"] = _coverage(result)
    report["summary"] = {
        "digest": result.hashes.digest,
        "zero_slots": len(result.repeats.zero),
        "duplicate_slots": result.repeats.duplicates,
        "duplicate_groups": result.repeats.groups,
    }
    report["tensors"] = [
        {
            "name": part.name,
            "dtype": part.info.dtype,
            "shape": list(part.info.shape),
            "row_bytes": part.row_bytes,
            "hashed_row_bytes": part.stride,
        }
        for part in pool.parts
    ]
    report["zero"] = to_ranges(result.repeats.zero.tolist())
    report["duplicates"] = [to_ranges(group.tolist()) for group in result.repeats.largest]
    report["values"] = _values(result)
    report["against"] = _against(result)
    report["changed"] = _changed(comparison, pool.page_size)
    report["memory"] = {"host_bytes": result.host_bytes, "device_bytes": result.device_bytes}
    report["saved"] = (
        None if result.saved_bytes is None else {"path": inputs["write_hashes"], "bytes": result.saved_bytes}
    )
    report["timing"] = timing_json(result.times, seconds)
    code = Exit.FINDINGS if comparison is not None and comparison.unexpected else Exit.PASS
    warnings = sum(1 for row in report["values"] or () if row["nan"] or row["inf"])
    return finish(report, code, warnings=warnings)


def _pool_json(result: ScrubResult) -> dict[str, Any]:
    pool = result.pool
    return {
        "slots": pool.num_slots,
        "pages": -(-pool.num_slots // pool.page_size),
        "page_size": pool.page_size,
        "tensors": len(pool.parts),
        "bytes_per_slot": sum(part.row_bytes for part in pool.parts),
    }


def _coverage(result: ScrubResult) -> dict[str, Any]:
    pool, comparison = result.pool, result.comparison
    return {
        "slots": pool.num_slots,
        "bytes": pool.num_bytes,
        "file_bytes": pool.file.num_bytes,
        "padding_bytes": pool.num_slots * pool.slot_bytes - pool.num_bytes,
        "tensors": len(pool.parts),
        "tensors_left_out": [
            {"name": info.name, "bytes": info.num_bytes, "reason": reason} for info, reason in pool.left_out
        ],
        "compared_slots": None if comparison is None else comparison.compared,
        "values_not_checked": None if result.values is None else result.values.not_checked,
    }


def _values(result: ScrubResult) -> list[dict[str, Any]] | None:
    if result.values is None:
        return None
    return [
        {
            "name": name,
            "nan": found.nan,
            "inf": found.inf,
            "slots": to_ranges(slot for slots in found.slots for slot in slots.tolist()),
        }
        for name, found in result.values.counts.items()
    ]


def _against(result: ScrubResult) -> dict[str, Any] | None:
    if result.other_hashes is None:
        return None
    return {
        "path": result.other_hashes.path,
        "kind": "hashes" if result.other_pool is None else "dump",
        "digest": result.other_hashes.digest,
        "bytes": None if result.other_pool is None else result.other_pool.num_bytes,
    }


def _changed(comparison: Comparison | None, page_size: int) -> dict[str, Any] | None:
    if comparison is None:
        return None
    # what was not allowed comes first: a cut list loses the harmless part
    ranges = sorted(comparison.ranges, key=lambda changed: changed.is_allowed)
    return {
        "slots": comparison.changed,
        "unexpected_slots": comparison.unexpected,
        "allowed_slots": comparison.changed - comparison.unexpected,
        "written_but_unchanged_slots": comparison.unchanged_written,
        "num_ranges": len(ranges),
        "ranges": [_range(changed, page_size) for changed in ranges[:MAX_RANGES]],
        "tensors": [{"name": name, "slots": slots} for name, slots in comparison.by_tensor.items() if slots],
    }


def _range(changed: ChangedRange, page_size: int) -> dict[str, Any]:
    return {
        "slots": [changed.first, changed.last],
        "pages": [changed.first // page_size, changed.last // page_size],
        "allowed": changed.is_allowed,
        "tensors": list(changed.tensors),
    }


def timing_json(times: Times, seconds: float) -> dict[str, Any]:
    """Seconds by part and GB/s; a part that took no time that a clock could tell has no rate."""

    def rate(part: float | None) -> float | None:
        return round(times.num_bytes / part / 1e9, 3) if part else None

    return {
        "seconds": round(seconds, 3),
        "start_seconds": round(times.start_seconds, 3),
        "hash_seconds": round(times.hash_seconds, 6),
        "read_seconds": round(times.read_seconds, 6),
        "copy_seconds": None if times.copy_seconds is None else round(times.copy_seconds, 6),
        "kernel_seconds": round(times.kernel_seconds, 6),
        "bytes": times.num_bytes,
        "end_to_end_gb_per_second": rate(times.hash_seconds),
        "read_gb_per_second": rate(times.read_seconds),
        "copy_gb_per_second": rate(times.copy_seconds),
        "kernel_gb_per_second": rate(times.kernel_seconds),
    }
