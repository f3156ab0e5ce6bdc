"""The hooks: what SGLang's own functions are given and return, passed on as facts for the book.

Each hook runs in the scheduler's thread. It notes host values, stages device tensors, and returns; what they
mean is worked out later. An exception of ours ends the recording, never the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from kvcanary_cli.recorders import pool_facts
from kvcanary_cli.recorders.recorder import Recorder
from kvcanary_cli.recorders.staged import Staged
from kvcanary_cli.recorders.targets import FREES, TARGETS
from kvcanary_cli.settings import RecordSettings

MODES = {1: "extend", 2: "decode", 3: "mixed"}
IDLE = 4


class Inside(NamedTuple):
    """What the scheduler is in the middle of, where it matters to a hook further in.

    Attributes:
        req: the request on whose behalf slots are released or published.
        is_evicting: the cache gives slots up.
        is_freeing: a release that was recorded already calls other releases.
        reads_rows: rows that are written now are read when it is done.
        published: what the cache took over, recorded when its row was rewritten.
        prefixes: the cache's slots for each request of the prefill, in order.
    """

    req: Any = None
    is_evicting: bool = False
    is_freeing: bool = False
    reads_rows: bool = False
    published: list[Any] | None = None
    prefixes: list[Any] | None = None


class Hooks:
    """One set of hooks for one process; it starts recording at the first prefill or forward."""

    def __init__(self, settings: RecordSettings) -> None:
        self.settings = settings
        self.recorder: Recorder | None = None
        self.inside = Inside()
        self._is_over = False
        self._start = time.monotonic()
        self._num_seen = 0
        self._unknown_rows: set[int] = set()  # in use since before the recording, or since a loss

    # starting

    def begin(self, pool: Any, allocator: Any, tree: Any) -> None:
        """Open the trace of this process, once."""
        self._start = time.monotonic()
        self.recorder = pool_facts.open_recorder(self.settings, pool, allocator, tree)
        self._forget_rows(pool)

    def _forget_rows(self, pool: Any) -> None:
        self._unknown_rows = set(range(1, pool.size + 1)).difference(pool.free_slots)

    def _relearn(self, batch: Any, lengths: list[int]) -> None:
        """Read the rows of a batch that nobody was seen to bind; `lengths`: columns written before this step."""
        rows, parts, known = [], [], []
        for req, length in zip(batch.reqs, lengths, strict=True):
            row = req.kv.req_pool_idx
            if row in self._unknown_rows:
                self._unknown_rows.discard(row)
                rows.append((row, req, _tokens_of(req)))
                parts.append(batch.req_to_token_pool.req_to_token[row, :length])
                known.append(length)
        if rows:
            self._put(self._book.relearned, rows, known, Staged(parts))

    def stop(self) -> None:
        """End the recording; nothing is recorded afterwards."""
        self._is_over = True
        if self.recorder is not None:
            self.recorder.stop()

    def _fail(self, where: str, error: BaseException) -> None:
        if self.recorder is not None:
            self.recorder.fail(where, error)
        else:
            self._is_over = True
            pool_facts.logger.warning("kvcanary: nothing is recorded: %s: %s", where, error, exc_info=error)

    def guarded(self, target: str, before: Callable[..., Any], after: Callable[..., None] | None) -> Any:
        """An AROUND hook that never raises anything of its own."""

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if self._is_over or (recorder is not None and not recorder.is_on):
                return original(*args, **kwargs)
            outside = self.inside
            try:
                noted = before(*args, **kwargs)
            except Exception as error:
                self._fail(target, error)
                self.inside = outside
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
                if after is not None and self.recorder is not None:
                    try:
                        after(noted, result, *args, **kwargs)
                    except Exception as error:
                        self._fail(target, error)
                return result
            finally:
                self.inside = outside

        return hook

    def _put(self, *fact: Any, num_forwards: int = 0) -> None:
        assert self.recorder is not None
        self.recorder.put(*fact, num_forwards=num_forwards)

    @property
    def _book(self) -> Any:
        assert self.recorder is not None
        return self.recorder.book

    # rows

    def before_bind(self, pool: Any, reqs: Any) -> Any:
        return [req for req in reqs if not req.kv.holds_kv]

    def after_bind(self, fresh: Any, result: Any, pool: Any, reqs: Any) -> None:
        if result is not None and fresh:
            rows = [(req.kv.req_pool_idx, req, _tokens_of(req)) for req in fresh]
            self._unknown_rows.difference_update(row for row, _, _ in rows)
            self._put(self._book.bound, rows)

    def before_unbind(self, pool: Any, req: Any) -> None:
        if self.recorder is None:
            return
        reason = req.finished_reason
        if reason is None:
            why = "retract"
        else:
            why = "cancel" if type(reason).__name__ == "FINISH_ABORT" else "done"
        row, end = req.kv.req_pool_idx, req.kv.cache_protected_len
        self._unknown_rows.discard(row)
        self._put(self._book.unbound, row, req, why, Staged([pool.req_to_token[row, :end]]) if end else None)

    def before_write(self, pool: Any, indices: Any, values: Any) -> None:
        if self.recorder is None or self.inside.reads_rows:
            return
        row, columns = indices
        if isinstance(columns, slice):
            self._put(self._book.mapped, Staged([values]), int(row), columns.start or 0)
        else:
            self._put(self._book.mapped, Staged([row, columns, values]), None, 0)

    # slots

    def before_extend(self, batch: Any) -> Any:
        if self.recorder is None:
            self.begin(batch.req_to_token_pool, batch.token_to_kv_pool_allocator, batch.tree_cache)
        elif self.recorder.resume():
            self._forget_rows(batch.req_to_token_pool)
        fresh = [not req.kv.holds_kv for req in batch.reqs]
        self.inside = self.inside._replace(reads_rows=True, prefixes=[])
        return fresh

    def after_prefix(self, noted: Any, result: Any, batch: Any, req: Any) -> None:
        if self.inside.prefixes is not None:
            self.inside.prefixes.append(result)

    def after_extend(self, fresh: Any, result: Any, batch: Any) -> None:
        if self._unknown_rows:
            self._relearn(batch, batch.prefix_lens)
        table = batch.req_to_token_pool.req_to_token
        prefixes = self.inside.prefixes or []
        lanes, parts = [], [result[0]]
        for lane, req in enumerate(batch.reqs):
            row, prefix, count = req.kv.req_pool_idx, batch.prefix_lens[lane], batch.extend_lens[lane]
            lanes.append((row, req, prefix, count, fresh[lane]))
            if fresh[lane]:
                has_prefix = lane < len(prefixes) and len(prefixes[lane]) == prefix
                parts.append(prefixes[lane] if has_prefix else table[row, :prefix])
                parts.append(table[row, : prefix + count])
            else:
                parts.append(table[row, prefix : prefix + count])
        self._put(self._book.extended, lanes, Staged(parts))

    def before_decode(self, batch: Any, token_per_req: int) -> None:
        if self.recorder is not None and self.recorder.resume():
            self._forget_rows(batch.req_to_token_pool)
        self.inside = self.inside._replace(reads_rows=True)

    def after_decode(self, noted: Any, result: Any, batch: Any, token_per_req: int) -> None:
        if self._unknown_rows:
            self._relearn(batch, [req.kv.kv_committed_len - token_per_req for req in batch.reqs])
        rows, columns = batch.req_pool_indices, batch.seq_lens
        entries = batch.req_to_token_pool.req_to_token[rows, columns]
        self._put(self._book.decoded, batch.reqs.copy(), Staged([rows, columns, result, entries]))

    def before_free(self, allocator: Any, indices: Any, **options: Any) -> None:
        self._note_free(indices, is_pages=False)

    def before_free_pages(self, allocator: Any, page_ids: Any) -> None:
        self._note_free(page_ids, is_pages=True)

    def _note_free(self, indices: Any, *, is_pages: bool) -> None:
        inside = self.inside
        if self.recorder is None or inside.is_freeing or indices.numel() == 0:
            return
        self.inside = inside._replace(is_freeing=True)
        staged = Staged([indices])
        if inside.is_evicting:
            self._put(self._book.evicted, staged, is_pages)
        else:
            self._put(self._book.freed, inside.req, staged, is_pages)

    def before_group_end(self, allocator: Any) -> None:
        # what was held back was recorded when it was released
        self.inside = self.inside._replace(is_freeing=True)

    # the prefix cache

    def before_release(self, req: Any, tree: Any, **options: Any) -> None:
        self.inside = self.inside._replace(req=req)

    def before_checkpoint(self, tree: Any, req: Any, **options: Any) -> Any:
        self.inside = self.inside._replace(req=req, reads_rows=True, published=[])
        return req.kv.cache_protected_len

    def after_checkpoint(self, first: Any, result: Any, tree: Any, req: Any, **options: Any) -> None:
        row, end = req.kv.req_pool_idx, req.kv.cache_protected_len
        published = self.inside.published
        entries = Staged([tree.req_to_token_pool.req_to_token[row, first:end]]) if end > first else None
        if published or entries is not None:
            self._put(self._book.checkpointed, row, req, published, first, entries)

    def after_insert(self, noted: Any, result: Any, tree: Any, params: Any) -> None:
        num_known = result.prefix_len
        if tree.disable or result.rotation_tail_declined or num_known >= len(params.value):
            return
        published = (bytes(params.key.raw_token_ids()), num_known, Staged([params.value]))
        if self.inside.published is not None:
            self.inside.published.append(published)
            return
        path = tree.path_device_indices(result.last_device_node)
        self._put(self._book.checkpointed, -1, None, [published], 0, Staged([path]))

    def before_evict(self, tree: Any, *args: Any, **options: Any) -> None:
        self.inside = self.inside._replace(is_evicting=True)

    def before_reset(self, tree: Any) -> None:
        if self.recorder is not None and not tree.disable:
            held = tree.all_values_flatten()
            if held.numel():
                self._put(self._book.evicted, Staged([held]))

    # forwards

    def before_forward(self, runner: Any, batch: Any, *args: Any, **options: Any) -> Any:
        mode = int(batch.forward_mode)
        if runner.is_draft_worker or mode == IDLE:
            return False
        if self.recorder is None:
            self.begin(runner.req_to_token_pool, runner.token_to_kv_pool_allocator, None)
        seconds = time.monotonic() - self._start
        name = MODES.get(mode)
        if name is None:
            why = f"forward mode {batch.forward_mode.name} is not recorded"
            self._put(self._book.lost, 1, why, num_forwards=1)
            return False
        lens = None
        if name != "decode":
            lens = (
                _listed(batch.extend_prefix_lens_cpu, batch.extend_prefix_lens),
                _listed(batch.extend_seq_lens_cpu, batch.extend_seq_lens),
            )
        every = self.settings.read_rows
        self._num_seen += 1
        if every and self._num_seen % every == 0:
            self._read_back(runner, batch)
        parts = [
            batch.req_pool_indices,
            batch.seq_lens,
            batch.input_ids,
            batch.out_cache_loc,
            batch.positions,
        ]
        num_tokens = len(batch.input_ids)
        self._put(self._book.launched, seconds, name, lens, num_tokens, Staged(parts), num_forwards=1)
        return True

    def after_forward(
        self, is_noted: Any, result: Any, runner: Any, batch: Any, *args: Any, **options: Any
    ) -> None:
        assert self.recorder is not None
        layer = self.settings.real_kv
        if is_noted and layer is not None:
            words = pool_facts.first_bytes(runner.token_to_kv_pool, layer, batch.out_cache_loc)
            if words is not None:
                self._put(self._book.hashed, "k", Staged([batch.out_cache_loc]), Staged([words]))
        self.recorder.wake()

    def _read_back(self, runner: Any, batch: Any) -> None:
        table = runner.req_to_token_pool.req_to_token
        rows = list(zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True))
        parts = [table[row, :length] for row, length in rows]
        self._put(self._book.read_back, rows, Staged(parts))


def _nothing(*args: Any, **options: Any) -> None:
    return None


def _tokens_of(req: Any) -> bytes:
    """The tokens that a request has by now, as int64."""
    return bytes(req.origin_input_ids) + bytes(req.output_ids)


def _listed(on_host: Any, on_device: Any) -> list[int]:
    """Lengths that SGLang keeps on the host as well, as a rule."""
    return list(on_host) if on_host is not None else list(on_device.tolist())


def install(settings: RecordSettings) -> Hooks:
    """Register every hook with SGLang's registry; they act once the registry applies them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = Hooks(settings)
    for target in (*TARGETS, *FREES):
        before = getattr(hooks, target.before) if target.before else _nothing
        after = getattr(hooks, target.after) if target.after else None
        HookRegistry.register(target.path, hooks.guarded(target.path, before, after), HookType.AROUND)
    return hooks
