"""Rules over a setup and its sizes: small functions with stable ids, each with the changes that satisfy it.

An id is never reused; a new rule is a function and a row of `RULES`. A rule with severity `error` describes a
launch whose server raises, at the start or in a step that these settings allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from kvcanary_cli.capacity.changes import (
    PLAN_REQUESTS,
    SCATTER_REQUESTS,
    Change,
    any_chunk,
    lower_chunk,
    lower_graph,
    lower_running,
    raise_prefill,
    token_check_off,
)
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels import messages

Severity = Literal["error", "warning", "info"]


class Hit(NamedTuple):
    """A rule that fires: what happens, in words, and the server's own text."""

    text: str
    server_message: str | None = None


class Rule(NamedTuple):
    """One rule.

    Args:
        code: of the capacity fault it belongs to, as `kvcanary explain` knows it.
        capacity: the row of the report that it judges.
        check: the hit, or None where the rule holds.
        changes: single changes that make the rule hold, the least intrusive first.
    """

    id: str
    code: str
    severity: Severity
    capacity: str
    check: Callable[[Setup, Sizes], Hit | None]
    changes: Callable[[Request, Setup, Sizes], list[Change]]


class Finding(NamedTuple):
    """A rule that fired, with its hit."""

    rule: Rule
    hit: Hit


def longest_prompt(setup: Setup) -> int:
    """Tokens of the longest prompt that is prefilled at once: context less one, and it fits the pool."""
    return min(setup.pool.context_length - 1, setup.pool.tokens)


def _req_plan(setup: Setup, sizes: Sizes) -> Hit | None:
    if sizes.write_req <= PLAN_REQUESTS:
        return None
    # the kernel is launched for all rows of the plan, so no batch has to grow first
    return Hit(text="the first step would raise", server_message=messages.plan_batch(sizes.write_req))


def _req_plan_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    if sizes.running.requests > PLAN_REQUESTS:
        return [lower_running(setup, PLAN_REQUESTS)]
    return [lower_graph(request, setup, PLAN_REQUESTS)]


def _scatter(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.canary.is_token_check_on or sizes.running.requests <= SCATTER_REQUESTS:
        return None
    return Hit(
        text=f"a step of {SCATTER_REQUESTS + 1:,} requests would raise",
        server_message=messages.scatter_batch(SCATTER_REQUESTS + 1),
    )


def _scatter_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    return [lower_running(setup, SCATTER_REQUESTS), token_check_off()]


def _chunk_zero(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.prefill.chunk != 0:
        return None
    return Hit(
        text=f"chunk 0 switches chunking off but counts as a limit of 0: a prefill of more than "
        f"{sizes.write_entry:,} tokens would raise",
        server_message=messages.write_entry(
            max(longest_prompt(setup), sizes.write_entry + 1), sizes.write_entry
        ),
    )


def _chunk_zero_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    return [lower_chunk(setup, sizes) or any_chunk(setup)]


def _entry_chunk(setup: Setup, sizes: Sizes) -> Hit | None:
    demand = min(setup.prefill.chunk, setup.pool.tokens)
    if setup.prefill.chunk <= 0 or demand <= sizes.write_entry:
        return None
    return Hit(
        text=f"a forward of {demand:,} tokens would raise",
        server_message=messages.write_entry(demand, sizes.write_entry),
    )


def _entry_chunk_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    demand = min(setup.prefill.chunk, setup.pool.tokens)
    chunk = lower_chunk(setup, sizes)
    return [*([chunk] if chunk else []), raise_prefill(demand)]


def _entry_unchunked(setup: Setup, sizes: Sizes) -> Hit | None:
    # a chunk of 0 is the rule above: raising the limits does not help it
    if setup.prefill.chunk >= 0 or longest_prompt(setup) <= sizes.write_entry:
        return None
    demand = longest_prompt(setup)
    return Hit(
        text=f"a prompt of {demand:,} tokens would raise",
        server_message=messages.write_entry(demand, sizes.write_entry),
    )


def _entry_unchunked_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    chunk = lower_chunk(setup, sizes)
    return [raise_prefill(longest_prompt(setup)), *([chunk] if chunk else [])]


def _verify_share(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.is_radix_on or sizes.running.requests * setup.pool.context_length <= sizes.verify:
        return None
    return Hit(text="prefix sharing can make the server skip its verification for a step")


def _no_changes(request: Request, setup: Setup, sizes: Sizes) -> list[Change]:
    return []


# Those that change the number of requests first: the other changes are solved on top of them
RULES = (
    Rule(
        id="req-plan",
        code="C1",
        severity="error",
        capacity="plan batch",
        check=_req_plan,
        changes=_req_plan_changes,
    ),
    Rule(
        id="scatter",
        code="C1",
        severity="error",
        capacity="token-id batch",
        check=_scatter,
        changes=_scatter_changes,
    ),
    Rule(
        id="chunk-zero",
        code="C2",
        severity="error",
        capacity="write entries",
        check=_chunk_zero,
        changes=_chunk_zero_changes,
    ),
    Rule(
        id="entry-chunk",
        code="C2",
        severity="error",
        capacity="write entries",
        check=_entry_chunk,
        changes=_entry_chunk_changes,
    ),
    Rule(
        id="entry-unchunked",
        code="C2",
        severity="error",
        capacity="write entries",
        check=_entry_unchunked,
        changes=_entry_unchunked_changes,
    ),
    Rule(
        id="verify-share",
        code="C4",
        severity="info",
        capacity="verify entries",
        check=_verify_share,
        changes=_no_changes,
    ),
)


def find(setup: Setup, sizes: Sizes) -> list[Finding]:
    """The rules that fire, in their order."""
    hits = ((rule, rule.check(setup, sizes)) for rule in RULES)
    return [Finding(rule=rule, hit=hit) for rule, hit in hits if hit is not None]


def errors(findings: list[Finding]) -> list[Finding]:
    """Those that make the audit fail."""
    return [finding for finding in findings if finding.rule.severity == "error"]
