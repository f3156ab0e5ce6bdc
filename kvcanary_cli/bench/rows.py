"""What a benchmark measured, one row an operation and case."""

from __future__ import annotations

from dataclasses import dataclass

WRONG = "wrong"
TIMED = "timed"
NO_GPU = "no GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRow:
    """One operation on one case.

    Attributes:
        operation: name as in `gpu.GpuCase.launches`; those of the peer begin with `sglang_`.
        order: where a lane's slots lie, `random` or `contiguous`.
        result: `timed`, `wrong` (then `problem` says how, and there is no time) or `no GPU`.
        moved_bytes: fewest bytes that the operation has to read and write.
    """

    case: str
    order: str
    operation: str
    result: str
    problem: str = ""
    median_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    moved_bytes: int | None = None

    @property
    def gb_per_second(self) -> float | None:
        """Bytes over the median time."""
        if self.median_us is None or not self.moved_bytes:
            return None
        return self.moved_bytes / self.median_us / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuRow:
    """One operation of the CPU backend, as a multiple of reading the same stamps and nothing else.

    Attributes:
        entries: stamps an operation looks at or writes.
        ratio: time over the time of a bare gather of as many stamps, in the same run; None when wrong.
    """

    case: str
    operation: str
    entries: int
    ratio: float | None
    problem: str = ""
