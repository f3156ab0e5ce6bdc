"""Opens a recording: sizes, ranks and features of the engine become the header and the names of the files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcanary_cli import __version__
from kvcanary_cli.recorders.book import Book
from kvcanary_cli.recorders.files import TraceFiles
from kvcanary_cli.recorders.recorder import Recorder
from kvcanary_cli.recorders.targets import unresolved, visible_kinds
from kvcanary_cli.recorders.tokens import Tokens
from kvcanary_cli.settings import RecordSettings
from kvcanary_cli.trace.events import Continues, Header, Pool, Source
from kvcanary_cli.trace.header import FORMAT, VERSION

logger = logging.getLogger("kvcanary")

HASHED_BYTES = 16
ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
RANKS = ("dp_rank", "tp_rank", "pp_rank")
# what stays true whatever else an engine does with its slots
ROWS_ONLY = ("bind", "unbind", "map", "end", "truth")


def open_recorder(settings: RecordSettings, pool: Any, allocator: Any, tree: Any) -> Recorder:
    """Start recording what happens to these pools from here on."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = unresolved(HookRegistry._patched)
    kinds = visible_kinds(missing)
    hidden = not_followed(allocator, tree)
    if hidden:
        kinds = [kind for kind in kinds if kind in ROWS_ONLY]
    if missing or hidden:
        names = [target.path for target in missing]
        logger.warning("kvcanary: not found in this SGLang: %s; not followed: %s", names, hidden)
    run, producer = describe_run(settings, [target.path for target in missing], hidden)
    page_size = int(allocator.page_size)
    num_pages = int(allocator.size) // page_size
    size = Pool(
        slots=(num_pages + 1) * page_size,
        page_size=page_size,
        rows=int(pool.req_to_token.shape[0]),
        row_width=int(pool.req_to_token.shape[1]),
    )
    is_fresh = len(pool.free_slots) == pool.size and allocator.available_size() == num_pages * page_size
    sources = read_sources(allocator, settings.real_kv or 0)

    def header(part: int) -> Header:
        return Header(
            format=FORMAT,
            version=VERSION,
            pool=size,
            sources=sources,
            records=kinds,
            state="empty" if is_fresh and part == 1 else "unknown",
            continues=Continues(part=part, of=run) if settings.max_bytes else None,
            producer=producer,
        )

    files = TraceFiles(Path(settings.folder), run, header, max_bytes=settings.max_bytes)
    tokens = Tokens(is_hashed=settings.tokens == "hash")
    unseen = f"not followed: {', '.join(hidden)}" if hidden else ""
    book = Book(files.write, kinds, tokens, num_slots=size.slots, page_size=page_size, unseen=unseen)
    recorder = Recorder(files, book, limit=settings.queue)
    logger.info("kvcanary: recording to %s", recorder.files.paths[0])
    essential = [target.path for target in missing if target.is_essential]
    if essential:
        recorder.put(
            book.lost, None, f"nothing is recorded, not found in this SGLang: {', '.join(essential)}"
        )
        recorder.stop()
    return recorder


def describe_run(
    settings: RecordSettings, missing: Sequence[str], hidden: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """A name for this process's recording, which its files have, and who made it."""
    ranks = read_ranks()
    name = "-".join(f"{rank[:2]}{number}" for rank, number in ranks.items())
    run = f"kvcanary-{name}-{os.getpid()}-{int(time.time())}"
    return run, {
        "name": "kvcanary.recorders.sglang",
        "version": __version__,
        "engine": f"sglang {engine_version()}",
        "rank": {rank.removesuffix("_rank"): number for rank, number in ranks.items()},
        "pid": os.getpid(),
        "run": run,
        "tokens": settings.tokens,
        "missing": list(missing),
        "not_followed": list(hidden),
    }


def not_followed(allocator: Any, tree: Any) -> list[str]:
    """Features in use whose slots come and go where no hook looks."""
    found = []
    if type(allocator).__name__ not in ALLOCATORS:
        found.append(f"allocator {type(allocator).__name__}")
    if tree is not None:
        if type(tree).__name__ != "UnifiedRadixCache":
            found.append(f"prefix cache {type(tree).__name__}")
        if getattr(tree, "cache_controller", None) is not None:
            found.append("hierarchical cache")
        if getattr(tree, "linker", None) is not None:
            found.append("external cache")
    try:
        from sglang.srt.runtime_context import get_disagg, get_spec

        if get_spec().speculative_algorithm is not None:
            found.append("speculative decoding")
        if get_disagg().disaggregation_mode != "null":
            found.append("disaggregation")
    except Exception:
        logger.debug("kvcanary: no server arguments to read", exc_info=True)
    return found


def read_ranks() -> dict[str, int]:
    """Data, tensor and pipeline rank of this process, 0 where it has none."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    ranks = {}
    for name in RANKS:
        try:
            ranks[name] = int(getattr(parallel, name) or 0)
        except Exception:  # outside of a server there are none
            ranks[name] = 0
    return ranks


def engine_version() -> str:
    """SGLang's version, for the header."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "unknown"


def read_sources(allocator: Any, layer: int) -> list[Source]:
    """The K half of one layer as a byte source; none where the pool is built otherwise."""
    buffers = getattr(allocator.get_kvcache(), "k_buffer", None)
    if not buffers:
        return []
    buffer = buffers[min(layer, len(buffers) - 1)]
    num_bytes = buffer[0].numel() * buffer.element_size() // HASHED_BYTES * HASHED_BYTES
    if num_bytes < HASHED_BYTES:
        return []
    return [
        Source(
            name="k",
            bytes_per_slot=num_bytes,
            hashed_bytes=HASHED_BYTES,
            dtype=str(buffer.dtype).removeprefix("torch."),
            item_bytes=buffer.element_size(),
        )
    ]


def first_bytes(kv_pool: Any, layer: int, slots: Any) -> Any:
    """[n, 16] bytes at the start of each slot of a layer's K buffer; None where there is none."""
    import torch

    buffers: Sequence[Any] | None = getattr(kv_pool, "k_buffer", None)
    if not buffers or layer >= len(buffers):
        return None
    buffer = buffers[layer]
    width = HASHED_BYTES // buffer.element_size()
    # a wrong slot must not become an index error on the device: the writer leaves it out
    rows = slots.clamp(0, buffer.shape[0] - 1)
    return buffer.reshape(buffer.shape[0], -1)[:, :width].index_select(0, rows).view(torch.uint8)
