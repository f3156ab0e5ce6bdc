"""Which checks an audit could make, and why it could not make the others."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.kvevents.audit import AuditResult

CHECKS = (
    "start",
    "sequence",
    "residency",
    "parents",
    "tokens",
    "block_size",
    "content",
    "page_hash",
    "capacity",
)
"""What `--require` takes for a stream of KV events."""


def made_checks(result: AuditResult) -> dict[str, int]:
    """How often each check was made."""
    counts = {"sequence": result.numbered, **result.checked}
    return {check: counts[check] for check in CHECKS if counts.get(check)}


def gaps_in_checks(result: AuditResult, pool_tokens: int | None) -> list[dict[str, Any]]:
    """Checks that could not be made on anything that was there to check, and why."""
    found = []
    if result.started_at is not None:
        why = f"the first batch is number {result.started_at:,}: what was cached before is not known"
        found.append(("start", why))
    if not result.numbered and result.batches:
        found.append(("sequence", "no batch has a number: lost ones can't be told"))
    if not result.stored_blocks:
        return [{"check": check, "why": why} for check, why in found]
    checked = result.checked
    if not checked["tokens"]:
        found.append(("tokens", "no store has tokens and a block size"))
    if not checked["block_size"]:
        found.append(("block_size", "no store has a block size"))
    if not checked["content"]:
        found.append(("content", "no store has tokens, or ids of them"))
    if not checked["page_hash"]:
        found.append(("page_hash", _why_no_page_hash(result)))
    if not checked["capacity"]:
        why = "the pool is not given: --pool-tokens N"
        found.append(("capacity", why if pool_tokens is None else "no store on the GPU has a block size"))
    return [{"check": check, "why": why} for check, why in found]


def _why_no_page_hash(result: AuditResult) -> str:
    if not result.checked["tokens"]:
        return "there are no tokens to compute it from"
    if any("page hash" in reason for reason in result.log.passed) and not any(
        cache.pages.unproven for cache in result.caches.values()
    ):
        return "every page has an adapter, a salt, pairs of tokens, or a parent that is not in the file"
    return "no hash is SGLang's plain page hash"
