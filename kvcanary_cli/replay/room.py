"""Whether a run fits into host memory, asked before any of it is taken."""

from __future__ import annotations

from kvcanary_cli.errors import MissingError
from kvcanary_cli.ledger.columns import SLOT_COLUMNS
from kvcanary_cli.runtime.layout import Layout
from kvcanary_cli.runtime.open import free_host_memory

CELL_BYTES = 12
"""A cell of the page table: its slot, when it was mapped, what it held before; int32 each."""
SLOT_BYTES = SLOT_COLUMNS * 4
INDEX_BYTES = 16
"""A slot of the full pool in the index of the cache and in the window map; int64 each."""


def host_bytes(layout: Layout, *, is_cpu: bool) -> dict[str, int]:
    """Bytes by purpose that a run may take on the host; the pool itself only where the CPU runs it."""
    cells = layout.num_rows * layout.row_width
    parts = layout.memory_bytes()
    own = parts if is_cpu else {"expected_tokens": parts["expected_tokens"], "ring": parts["ring"]}
    return own | {
        "page_table": cells * CELL_BYTES,
        "ledger": sum(group.num_slots for group in layout.groups) * SLOT_BYTES,
        "swa_map": layout.num_slots * INDEX_BYTES,
    }


def require_room(layout: Layout, *, is_cpu: bool, available: int | None = None) -> None:
    """Refuse a run whose pool, page table or log the host has no room for.

    Args:
        available: free bytes; by default what the system says, and nothing is refused where it says nothing.

    Raises: MissingError with what is needed, what is there, and the setting that asks for the most.
    """
    free = free_host_memory() if available is None else available
    parts = host_bytes(layout, is_cpu=is_cpu)
    need = sum(parts.values())
    if free is None or need <= free:
        return
    largest = max(parts, key=lambda name: parts[name])
    reason, hint = _reason(layout, largest)
    raise MissingError(
        f"this run needs {_gib(need)} of host memory, {_gib(free)} are free; "
        f"the largest part is {largest.replace('_', ' ')} with {_gib(parts[largest])}: {reason}",
        hint=hint,
    )


def _reason(layout: Layout, part: str) -> tuple[str, str]:
    """The sizes that make a part large, and what to change."""
    if part in ("page_table", "expected_tokens"):
        sizes = f"{layout.num_rows:,} rows x {layout.row_width:,} columns"
        return sizes, "a smaller `pool.rows` or `pool.row_width` in the trace's header"
    if part == "ring":
        return f"{layout.ring_capacity:,} rows", "`--ring 1024`"
    slots = f"{sum(group.num_slots for group in layout.groups):,} slots"
    if part == "kv":
        widths = sum(source.bytes_per_slot for source in layout.sources)
        return f"{slots} x {widths:,} bytes", "smaller `bytes_per_slot` in the trace's header"
    return slots, "a smaller `pool.slots` in the trace's header, or a machine with more memory"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
