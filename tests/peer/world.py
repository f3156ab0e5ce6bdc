"""A small scheduler around SGLang's own pools, allocators, prefix cache and batches.

It makes the calls that SGLang's scheduler makes, in the same order, for a queue of requests: prefix match, lock,
chunked prefill, decode, checkpoint, finish, abort, retraction. Tokens are drawn with a seed.
"""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

from tests.peer import stubs

VOCABULARY = 32_000
KV_DTYPE_BYTES = 4


class World:
    """Pools of one rank, and requests running in them.

    Attributes:
        num_forwards: forwards launched so far.
        before_forward: called with the forward batch right before a launch; a place to plant faults.
        complete_batch: called with a forward batch that is being made, and its requests.
    """

    def __init__(
        self,
        *,
        page_size: int = 1,
        radix: bool = True,
        slots: int = 256,
        rows: int = 6,
        width: int = 160,
        chunk: int = 64,
        seed: int = 0,
    ) -> None:
        import torch
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.random = random.Random(seed)
        self.chunk = chunk
        self.pool = ReqToTokenPool(rows, width, "cpu", False)
        self.kv_pool = MHATokenToKVPool(slots, page_size, torch.float32, 2, 8, 2, "cpu", False)
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(slots, torch.float32, "cpu", self.kv_pool, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                slots, page_size, torch.float32, "cpu", self.kv_pool, False
            )
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=not radix,
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
            )
        )
        self.runner = stubs.stand_in_runner(self.pool, self.allocator, self.kv_pool)
        self.waiting: list[Any] = []
        self.running: Any = None
        self.chunked: Any = None
        self.num_forwards = 0
        self.retracted: list[str] = []
        self.before_forward: Any = None
        self.complete_batch: Any = None

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1, VOCABULARY) for _ in range(count)]

    def submit(self, rid: str, tokens: list[int], max_new: int) -> Any:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(max_new_tokens=max_new, temperature=0, ignore_eos=True)
        params.normalize(None)
        req = Req(rid, "", array("q", tokens), params, vocab_size=VOCABULARY)
        self.waiting.append(req)
        return req

    def run(self, most: int = 500) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("the requests do not end")

    def step(self) -> bool:
        """One prefill or decode; False when there was nothing to do."""
        batch = self._next_prefill()
        if batch is not None:
            self._prefill(batch)
            return True
        if self.running is None or not self.running.reqs:
            return bool(self.waiting)
        self._decode()
        return True

    def abort(self, req: Any) -> None:
        """Cancel a running request."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT
        from sglang.srt.mem_cache.common import release_kv_cache

        req.finished_reason = FINISH_ABORT("gone")
        self._grouped(lambda: release_kv_cache(req, self.tree, checkpoint=False))
        self.running.filter_batch()

    def _next_prefill(self) -> Any:
        from sglang.srt.managers.schedule_batch import ScheduleBatch
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        room = self.chunk
        chosen = []
        candidates = [self.chunked] if self.chunked is not None else []
        candidates += self.waiting
        reserved = 0
        rows = self.pool.available_size()
        page = self.allocator.page_size
        for req in candidates:
            is_new = req is not self.chunked
            if is_new and rows == 0:
                break
            if is_new:
                req.init_next_round_input(self.tree)
            else:
                req.init_next_round_input()
            whole = len(req.origin_input_ids) + len(req.output_ids)
            count = min(whole - req.prefix_len, room)
            if req.prefix_len + count < whole:
                count = count // page * page
            if count <= 0:
                break
            if is_new:
                req.lock = self.tree.lock(req.last_node)
            if reserved + count + 2 * page > self.allocator.available_size() + self.tree.evictable_size():
                if is_new:
                    self.tree.unlock(req.lock)
                    req.lock = None
                break
            rows -= is_new
            req.extend_end = req.prefix_len + count
            reserved += count + page
            room -= count
            chosen.append(req)
            if room <= 0 or req.extend_end < whole:
                break
        if not chosen:
            return None
        for req in chosen:
            if req is not self.chunked:
                self.waiting.remove(req)
        return ScheduleBatch.init_new(
            chosen,
            self.pool,
            self.allocator,
            self.tree,
            SimpleNamespace(vocab_size=VOCABULARY, is_encoder_decoder=False),
            False,
            SpeculativeAlgorithm.from_string(None),
        )

    def _prefill(self, batch: Any) -> None:
        from sglang.srt.mem_cache.common import checkpoint_kv_cache

        batch.prepare_for_extend()
        batch.input_ids = batch.prefill_input_ids_cpu.to("cpu")
        self._launch(batch)
        self.chunked = None
        done = []
        for req in batch.reqs:
            if req.extend_end < len(req.origin_input_ids) + len(req.output_ids):
                self.chunked = req
                checkpoint_kv_cache(req, self.tree)
                continue
            req.output_ids.append(self.random.randrange(1, VOCABULARY))
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                done.append(req)
            else:
                checkpoint_kv_cache(req, self.tree)
        self._finish(done)
        batch.filter_batch(reqs_to_exclude=[self.chunked] if self.chunked is not None else [])
        if not batch.reqs:
            return
        batch.input_ids = None
        if self.running is None or not self.running.reqs:
            self.running = batch
        else:
            self.running.merge_batch(batch)

    def _decode(self) -> None:
        batch = self.running
        if not batch.check_decode_mem():
            retracted, _, _ = batch.retract_decode()
            self.retracted += [req.rid for req in retracted]
            self.waiting = retracted + self.waiting
        batch.prepare_for_decode()
        import torch

        batch.input_ids = torch.tensor([req.output_ids[-1] for req in batch.reqs])
        self._launch(batch)
        done = []
        for req in batch.reqs:
            req.output_ids.append(self.random.randrange(1, VOCABULARY))
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                done.append(req)
        self._finish(done)
        batch.filter_batch()

    def _finish(self, reqs: list[Any]) -> None:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import release_kv_cache

        def release() -> None:
            for req in reqs:
                req.finished_reason = FINISH_LENGTH(len(req.output_ids))
                req.finished_len = len(req.output_ids)
                release_kv_cache(req, self.tree, checkpoint=True)

        self._grouped(release)

    def _grouped(self, release: Any) -> None:
        self.allocator.free_group_begin()
        release()
        self.allocator.free_group_end()

    def _launch(self, batch: Any) -> None:
        batch_on_device = self.forward_batch(batch)
        if self.before_forward is not None:
            self.before_forward(batch_on_device)
        self.runner.forward(batch_on_device)
        self.num_forwards += 1

    def forward_batch(self, batch: Any) -> Any:
        """What the worker makes of a batch."""
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch

        made = ForwardBatch(
            forward_mode=batch.forward_mode,
            batch_size=len(batch.reqs),
            input_ids=batch.input_ids,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=batch.out_cache_loc,
            seq_lens_sum=int(batch.seq_lens.sum()),
        )
        made.rids = [req.rid for req in batch.reqs]
        if batch.forward_mode.is_extend():
            made.extend_prefix_lens_cpu, made.extend_seq_lens_cpu = batch.prefix_lens, batch.extend_lens
            made.extend_prefix_lens = torch.tensor(batch.prefix_lens)
            made.extend_seq_lens = torch.tensor(batch.extend_lens)
            made.positions = torch.cat(
                [torch.arange(p, p + n) for p, n in zip(batch.prefix_lens, batch.extend_lens, strict=True)]
            )
        else:
            made.positions = batch.seq_lens - 1
        if self.complete_batch is not None:
            self.complete_batch(made, batch.reqs)
        return made
