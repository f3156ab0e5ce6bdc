"""Dumps of a replayed scenario, and of vectors that SGLang's own kernels wrote."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from kvcanary_cli.kernels.vectors import Vector
from kvcanary_cli.replay import run as replay_run
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.replay.state import RunState
from kvcanary_cli.runtime.cpu import CpuRuntime
from kvcanary_cli.sim.scenarios import scenario
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.dump import DumpCache, DumpSource, write_dump
from tests.replay.driving import CPU

TAGS = ["head_k", "head_v", "tail_k", "tail_v", "tail_k", "tail_v"]


@dataclass
class Run:
    """A replay that stopped in the middle: its memory, and how many positions of each row are written."""

    header: ev.Header
    runtime: CpuRuntime
    state: RunState
    lens: np.ndarray

    def arguments(self) -> dict:
        """What `write_dump` takes, all of it copies."""
        runtime, state, layout = self.runtime, self.state, self.runtime.layout
        slots, positions, before = state.cache.entries()
        window = next((group.window for group in layout.groups if group.kind == "swa"), None)
        shape = (layout.num_rows, layout.row_width)
        pool = state.expected.pool
        return {
            "canary": {"_".join(key): stamps.copy() for key, stamps in runtime.stamps.items()},
            "req_to_token": state.table.entries.reshape(shape).copy(),
            "seq_lens": self.lens.copy(),
            "sources": [
                DumpSource(
                    name=source.name,
                    tensor=runtime._kv[source.number].copy(),
                    num_bytes_per_token=source.bytes_per_slot,
                    read_bytes=source.hashed_bytes,
                    half=source.half,
                    group=source.group,
                    page_size=layout.page_size,
                )
                for source in layout.sources
            ],
            "hash_mode": "all",
            "expected_tokens": None if pool is None else pool.copy(),
            "expected_lens": None if pool is None else state.expected.row_lens.copy(),
            "full_to_swa": runtime.swa_map.copy() if layout.maps_window else None,
            "window_size": window,
            "page_size": layout.page_size,
            "cache": DumpCache(slots=slots, positions=positions, predecessors=before),
            "rids": {row: rid for row, rid in enumerate(state.table.row_rid) if rid is not None},
            "chain": "affine" if layout.is_affine else "mixed",
        }

    def write(self, path: Path, arguments: dict | None = None) -> str:
        write_dump(path, **(self.arguments() if arguments is None else arguments))
        return str(path)


def stopped_run(name: str, steps: int, *, is_affine: bool = False) -> Run:
    """Replay the first forwards of a scenario of many, so that requests are in the middle of their work."""
    header, events = scenario(name, steps=200, seed=3)
    lens = np.zeros(header.pool.rows, np.int64)
    with ExitStack() as stack:
        opened = stack.enter_context(
            mock.patch.object(replay_run, "open_runtime", wraps=replay_run.open_runtime)
        )
        made = stack.enter_context(mock.patch.object(replay_run, "new_state", wraps=replay_run.new_state))
        seen: dict[str, object] = {}
        opened.side_effect = _kept(seen, "runtime", opened._mock_wraps)
        made.side_effect = _kept(seen, "state", made._mock_wraps)
        result = run_replay(
            header,
            enumerate(_followed(events, lens, steps), 2),
            ReplayOptions(device=CPU, is_affine=is_affine),
            path="test.jsonl",
        )
    assert not result.incidents
    return Run(header, seen["runtime"], seen["state"], lens)


def _kept(seen, key, function):
    def call(*args, **options):
        seen[key] = function(*args, **options)
        return seen[key]

    return call


def _followed(events, lens, steps):
    """The events up to a number of forwards, noting what each forward leaves written."""
    count = 0
    for event in events:
        if isinstance(event, ev.Unbind):
            lens[event.row] = 0
        if isinstance(event, ev.Bind):
            lens[event.row] = 0
        if isinstance(event, ev.Forward):
            if count == steps:
                return
            count += 1
            written = event.lens if event.lens is not None else [1] * len(event.rows)
            kept = event.accepted if event.accepted is not None else written
            for row, prefix, number in zip(event.rows, event.prefix, kept, strict=True):
                if row:
                    lens[row] = prefix + number
        yield event


def write_vector_dump(path: Path, vector: Vector, entries: dict[str, np.ndarray]) -> str:
    """A dump of the stamps that a vector's kernel left, with `entries` as cached ones."""
    meta = vector.meta
    tag = meta["launch_tag"]
    name = f"{TAGS[tag % 6]}_{'swa' if tag >= 6 else 'full'}"
    _, half, group = name.split("_")
    mode = ("none", "partial", "all")[meta["real_kv_hash_mode"]]
    sources = [
        DumpSource(name=f"s{i}", tensor=vector.arrays[f"in_source{i}"], half=half, group=group, **source)
        for i, source in enumerate(meta["sources"])
    ]
    write_dump(
        path,
        canary={name.replace("head", "tail"): vector.arrays["out_canary_buf"]},
        sources=sources,
        hash_mode=mode if sources else "none",
        window_size=0,
        cache=DumpCache(**entries),
        req_to_token=np.zeros((1, 1), np.int32),
        seq_lens=np.zeros(1, np.int64),
    )
    return str(path)
