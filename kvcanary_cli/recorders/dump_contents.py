"""What SGLang holds at one moment, as the arguments of `write_dump`: canary buffers, page table, prefix cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcanary_cli.recorders.staged import IntArray
from kvcanary_cli.trace.dump import DumpCache, DumpSource

logger = logging.getLogger("kvcanary")

EXTENDS = (1, 3)  # forward modes that write several positions of a row: extend, mixed
DECODE = 2
PARTIAL_BYTES = 16
COPY_BYTES = 1 << 26  # what is copied from the device at once
BUFFERS = (("k", "head"), ("k", "tail"), ("v", "head"), ("v", "tail"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A forward that is about to begin, or that was launched whole.

    Attributes:
        runner, batch: SGLang's `ModelRunner` and `ForwardBatch`.
        is_done: whether what the forward writes counts as written.
    """

    runner: Any
    batch: Any
    is_done: bool = False


def read_contents(moment: Moment, reqs: Mapping[int, Any], *, with_kv: bool) -> dict[str, Any]:
    """Without a canary in the server, or with one that is built otherwise, it is the page table and its lengths.

    Args:
        reqs: the request of each row that has one.
        with_kv: whether the KV bytes that stamps cover are copied too.
    """
    runner = moment.runner
    table = runner.req_to_token_pool.req_to_token
    lens, rids = written_lengths(moment, reqs)
    # what lies behind the longest row says nothing and can be gigabytes
    width = max(1, min(table.shape[1], int(lens.max(initial=0))))
    found: dict[str, Any] = {
        "canary": {},
        "req_to_token": table[:, :width],
        "seq_lens": lens,
        "rids": rids,
        "page_size": int(runner.token_to_kv_pool_allocator.page_size),
        "about": {},
    }
    manager = runner.canary_manager
    if manager is None:
        found["about"] = {"canary": "off"}
        return found
    try:
        stamps = _of_canary(manager, with_kv=with_kv)
        if manager._device_state.req_to_verify_expected_tokens is not None:
            stamps |= expected_tokens(reqs, lens, width)
    except Exception as error:
        # the table alone is worth a dump, and the audit says what it lacks
        logger.warning("kvcanary: the canary is not in the dump: %s", error, exc_info=True)
        found["about"] = {"canary": f"could not be read: {type(error).__name__}: {error}"}
        return found
    return found | stamps


def written_lengths(moment: Moment, reqs: Mapping[int, Any]) -> tuple[IntArray, dict[int, str]]:
    """[rows] positions that are written of each row, and the names of the requests.

    Rows of the batch go by the batch, because their requests count already what the forward is going to write.
    """
    lens = np.zeros(moment.runner.req_to_token_pool.req_to_token.shape[0], np.int64)
    rids: dict[int, str] = {}
    committed = {row: int(req.kv.kv_committed_len) for row, req in reqs.items()}
    for row, length in committed.items():
        lens[row] = length
        rids[row] = str(reqs[row].rid)
    for row, length in _of_batch(moment, committed):
        if 0 < row < len(lens):
            lens[row] = length
    return lens, {row: rid for row, rid in rids.items() if lens[row]}


def _of_batch(moment: Moment, committed: Mapping[int, int]) -> list[tuple[int, int]]:
    """(row, positions written) for the lanes of the forward."""
    batch, mode = moment.batch, int(moment.batch.forward_mode)
    rows, ends = batch.req_pool_indices.tolist(), batch.seq_lens.tolist()
    if moment.is_done:
        written = ends
    elif mode in EXTENDS:
        on_host = batch.extend_prefix_lens_cpu
        written = list(on_host) if on_host is not None else batch.extend_prefix_lens.tolist()
    elif mode == DECODE:
        written = [end - 1 for end in ends]
    else:
        written = [min(end, committed.get(row, end)) for row, end in zip(rows, ends, strict=False)]
    return list(zip(rows, written, strict=False))


def expected_tokens(reqs: Mapping[int, Any], lens: IntArray, width: int) -> dict[str, Any]:
    """The tokens that requests have, [rows, width], and how many of each row: what SGLang's own check goes by."""
    tokens = np.zeros((len(lens), width), np.int32)
    known = np.zeros(len(lens), np.int64)
    largest = np.iinfo(np.int32).max
    for row, req in reqs.items():
        ids = np.frombuffer(bytes(req.origin_input_ids) + bytes(req.output_ids), np.int64)[: lens[row]]
        ids = ids[:width]
        # hashes of images stand for tokens too and may be larger than any token: nothing is expected then
        if len(ids) and int(ids.min()) >= 0 and int(ids.max()) <= largest:
            tokens[row, : len(ids)] = ids
            known[row] = len(ids)
    return {"expected_tokens": tokens, "expected_lens": known}


def _of_canary(manager: Any, *, with_kv: bool) -> dict[str, Any]:
    canary: dict[str, Any] = {}
    sources: list[DumpSource] = []
    window = None
    mode = manager.config.real_kv_hash_mode.name.lower()
    for group in manager._buffer_groups:
        kind = group.kind.name.lower()
        for half, phase in BUFFERS:
            buffer = getattr(group, f"{half}_{phase}")
            if buffer is not None:
                canary[f"{phase}_{half}_{kind}"] = buffer
        for half, pieces in (("k", group.real_kv_sources_k), ("v", group.real_kv_sources_v)):
            if with_kv and mode != "none":
                sources += [
                    hashed_bytes(piece, mode, name=f"{half}{i}.{kind}", half=half, group=kind)
                    for i, piece in enumerate(pieces)
                ]
        if group.swa_index_lut is not None:
            window = group.swa_index_lut
    log = manager._device_state.violation_log
    return {
        "canary": canary,
        "sources": sources,
        "hash_mode": mode,
        "full_to_swa": window,
        "window_size": manager._swa_window_size if window is not None else None,
        "cache": _walk_cache(manager._sweep_orchestrator._radix_cache),
        "violations": log.violation_ring,
        "violation_count": log.violation_write_index,
    }


def hashed_bytes(piece: Any, mode: str, *, name: str, half: str, group: str) -> DumpSource:
    """The bytes of a source that are hashed, of every slot, copied to the host piece by piece."""
    import torch

    tensor, slots, step = piece.tensor, int(piece.page_size), int(piece.num_bytes_per_token)
    width = min(int(piece.read_bytes), PARTIAL_BYTES) if mode == "partial" else int(piece.read_bytes)
    rows = (tensor if tensor.ndim == 2 else tensor.flatten(1)).view(torch.uint8)
    host = np.empty((rows.shape[0], slots * width), np.uint8)
    num_rows = max(1, COPY_BYTES // (slots * width))
    for first in range(0, rows.shape[0], num_rows):
        part = rows[first : first + num_rows, : slots * step]
        part = part.unflatten(1, (slots, step))[:, :, :width]
        host[first : first + len(part)] = part.reshape(len(part), -1).cpu().numpy()
    return DumpSource(
        name=name,
        tensor=host,
        num_bytes_per_token=width,
        read_bytes=width,
        half=half,
        group=group,
        page_size=slots,
    )


def _walk_cache(tree: Any) -> DumpCache | None:
    """The prefix cache; None where there is none, or one that SGLang's canary doesn't walk either."""
    if tree is None:
        return None
    from sglang.srt.kv_canary.radix_cache_walker import walk_radix_cache_for_canary

    try:
        walk = walk_radix_cache_for_canary(radix_cache=tree)
    except NotImplementedError as error:
        logger.warning("kvcanary: the prefix cache is not in the dump: %s", error)
        return None
    return DumpCache(slots=walk.slot_indices, positions=walk.positions, predecessors=walk.prev_slot_indices)
