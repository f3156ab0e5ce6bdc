"""The server of a set-up as settings of the scheduler model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.capacity.formula import floor_page

if TYPE_CHECKING:
    from kvcanary_cli.capacity.setup import Setup
    from kvcanary_cli.capacity.sizes import Sizes


def server_settings(setup: Setup, sizes: Sizes) -> dict[str, Any]:
    """Arguments of `SimConfig`: pool, window, batching rules and draft tokens of the server."""
    pool, chunk = setup.pool, setup.prefill.chunk
    page = pool.page_size
    return {
        "pool_slots": floor_page(pool.tokens, page) + page,
        "page_size": page,
        "row_width": -(-pool.context_length // page) * page,
        "max_running_requests": sizes.running.requests,
        "chunk_tokens": chunk if chunk > 0 else None,
        "max_prefill_tokens": setup.prefill.max_tokens,
        "prefix_cache": setup.is_radix_on,
        "window": setup.window.size or 0,
        "window_slots": 0 if setup.window.tokens is None else floor_page(setup.window.tokens, page) + page,
        "draft_tokens": setup.speculation.draft_tokens if setup.speculation.algorithm else 0,
    }
