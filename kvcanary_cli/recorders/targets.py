"""Which of SGLang's functions are hooked, and what a trace lacks if one of them is not there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

ROOT = "sglang.srt."
KINDS = ("bind", "unbind", "alloc", "free", "share", "publish", "evict", "map", "end", "truth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One function.

    Attributes:
        path: as SGLang's registry wants it.
        before, after: methods of `Hooks`.
        gives: kinds of event that can't be told without it.
        is_essential: without it nobody knows what a row holds, so nothing can be recorded.
    """

    path: str
    before: str | None = None
    after: str | None = None
    gives: tuple[str, ...] = ()
    is_essential: bool = False


def _pool(name: str, before: str, after: str | None, *gives: str) -> Target:
    path = f"{ROOT}mem_cache.memory_pool.ReqToTokenPool.{name}"
    return Target(path=path, before=before, after=after, gives=gives, is_essential=name == "alloc")


def _tree(name: str, before: str | None, after: str | None, *gives: str) -> Target:
    path = f"{ROOT}mem_cache.unified_radix_cache.UnifiedRadixCache.{name}"
    is_essential = name == "checkpoint_into_tree"
    return Target(path=path, before=before, after=after, gives=gives, is_essential=is_essential)


FORWARD = Target(
    path=f"{ROOT}model_executor.model_runner.ModelRunner.forward",
    before="before_forward",
    after="after_forward",
    is_essential=True,
)
TARGETS = (
    _pool("alloc", "before_bind", "after_bind", "bind", "truth", "share", "map"),
    _pool("free", "before_unbind", None, "unbind", "end", "free"),
    _pool("write", "before_write", None, "map"),
    Target(
        path=f"{ROOT}mem_cache.allocation.alloc_for_extend",
        before="before_extend",
        after="after_extend",
        gives=("alloc", "share", "map"),
        is_essential=True,
    ),
    Target(
        path=f"{ROOT}mem_cache.allocation.alloc_for_decode",
        before="before_decode",
        after="after_decode",
        gives=("alloc", "map"),
        is_essential=True,
    ),
    # without it the row itself says which prefix a request got: no kind of event is lost
    Target(path=f"{ROOT}mem_cache.allocation._prefix_kv_indices", after="after_prefix"),
    Target(path=f"{ROOT}mem_cache.common.release_kv_cache", before="before_release", gives=("free",)),
    Target(
        path=f"{ROOT}mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_group_end",
        before="before_group_end",
        gives=("free", "evict"),
    ),
    _tree("checkpoint_into_tree", "before_checkpoint", "after_checkpoint", "publish", "share", "map"),
    _tree("insert", None, "after_insert", "publish"),
    _tree("_evict", "before_evict", None, "evict", "free"),
    _tree("reset", "before_reset", None, "evict"),
    FORWARD,
)
_ALLOCATOR = f"{ROOT}mem_cache.allocator."
FREES = (
    Target(
        path=f"{_ALLOCATOR}token.TokenToKVPoolAllocator.free", before="before_free", gives=("free", "evict")
    ),
    *(
        Target(
            path=f"{_ALLOCATOR}paged.PagedTokenToKVPoolAllocator.{name}",
            before=before,
            gives=("free", "evict"),
        )
        for name, before in (
            ("free", "before_free"),
            ("free_segment", "before_free"),
            ("free_page_ids", "before_free_pages"),
        )
    ),
)


def unresolved(patched: Collection[str]) -> list[Target]:
    """Targets that SGLang's registry did not find."""
    return [target for target in (*TARGETS, *FREES) if target.path not in patched]


def visible_kinds(missing: Collection[Target]) -> list[str]:
    """Kinds of event that can be told without the missing targets."""
    lost = {kind for target in missing for kind in target.gives}
    return [kind for kind in KINDS if kind not in lost]
