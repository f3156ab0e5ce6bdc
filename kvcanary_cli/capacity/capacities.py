"""The rows of an audit: each capacity's value, what a forward can need, and how both came about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from kvcanary_cli.capacity.changes import PLAN_REQUESTS, SCATTER_REQUESTS
from kvcanary_cli.capacity.formula import RUNNING_HIGH, RUNNING_LOW
from kvcanary_cli.capacity.rule import Finding, Severity
from kvcanary_cli.capacity.rules_entries import longest_prompt
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import BUILT_IN, Sizes

Status = Literal["OK", "TIGHT", "OVER", "INFO", "FAIL", "WARN"]

# What a rule's own row says
_RULE_STATUS: dict[Severity, Status] = {"error": "FAIL", "warning": "WARN", "info": "INFO"}

# An estimated need with less room than a quarter is not safe
TIGHT_PERCENT = 125
# Where the number of running requests comes from
_RUNNING_REMARKS = {
    "flag": "",
    "pool": "half of the pool tokens",
    "low": f"512 x pool / context, at least {RUNNING_LOW:,}",
    "high": f"512 x pool / context, at most {RUNNING_HIGH:,}",
    "estimate": "512 x pool / context",
    "states": "one Mamba state a request",
    "log": "as the log states them",
}
_NEED_RULES = {
    "verify entries": "need-verify",
    "write requests": "need-requests",
    "write entries": "need-entries",
    "token-id batch": "need-token-ids",
}
# Shared prefix in the example of how verification overflows
_EXAMPLE_PREFIX = 8000


class Capacity(NamedTuple):
    """One capacity, or one rule that fires and judges none of them: that has a row of its own, by its id.

    Args:
        rule: id of the rule that judges the row: the one that fired, else the one that was tested.
        need: most that a forward can ask for, None where these settings don't bound it.
        is_exact: whether `need` is proven never to pass `value`.
        formula: in words; `terms` holds their numbers.
        worked: the formula with its numbers in place, as the report prints it.
        remark: what else the reader must know, or nothing.
    """

    name: str
    code: str
    rule: str
    status: Status
    value: int | None
    need: int | None
    is_exact: bool
    bound_by: str
    formula: str
    terms: Mapping[str, int]
    worked: str
    remark: str = ""
    server_message: str | None = None


def capacities(setup: Setup, sizes: Sizes, findings: list[Finding]) -> list[Capacity]:
    """The rows in the order of the report; the token-id batch only where the token check is on."""
    fired = {finding.rule.capacity: finding for finding in reversed(findings)}
    rows = [
        _verify(setup, sizes, fired.get("verify entries")),
        _requests(setup, sizes, fired.get("write requests")),
        _entries(setup, sizes, fired.get("write entries")),
        _plan(sizes, fired.get("plan batch")),
    ]
    if setup.canary.is_token_check_on:
        rows.append(_token_ids(sizes, fired.get("token-id batch")))
    rows = [_measured(row, setup) for row in rows]
    return rows + [_rule(finding) for finding in findings if not finding.rule.capacity]


def _measured(row: Capacity, setup: Setup) -> Capacity:
    """A row with the need of a measured workload, where there is one and the row's need is not built in."""
    workload = setup.workload
    if workload is None or row.name == "plan batch" or row.value is None:
        return row
    peaks = {"write requests": workload.requests, "write entries": workload.tokens}
    group, verified = workload.most_verified
    peak = verified if row.name == "verify entries" else peaks.get(row.name, workload.requests)
    remark = f"need: {peak.need:,} at step {peak.step:,}"
    if row.name == "verify entries":
        times = peak.need * 100 // setup.pool.tokens
        remark += f" ({times // 100}.{times % 100:02} x pool slots), {group} group"
    status: Status = "OK"
    # what the flags prove stays proven, unless the workload was recorded with others
    is_exact = row.is_exact and peak.need <= row.value
    if peak.need > row.value:
        status = "OVER"
    elif not is_exact and row.value * 100 < peak.need * TIGHT_PERCENT:
        status = "TIGHT"
    return row._replace(
        rule=_NEED_RULES[row.name], status=status, need=peak.need, is_exact=is_exact, remark=remark
    )


def _rule(finding: Finding) -> Capacity:
    rule, hit = finding
    return Capacity(
        name=rule.id,
        code=rule.code,
        rule=rule.id,
        status=_RULE_STATUS[rule.severity],
        value=hit.value,
        need=hit.need,
        is_exact=False,
        bound_by=hit.setting,
        formula=rule.title,
        terms={},
        worked=f"{hit.when}: {hit.text}",
        server_message=hit.server_message,
    )


def _verify(setup: Setup, sizes: Sizes, finding: Finding | None) -> Capacity:
    tokens, running, context = setup.pool.tokens, sizes.running.requests, setup.pool.context_length
    if finding is not None:
        need, remark = None, _overflow_example(running, context, sizes.verify)
    elif not setup.is_radix_on:
        need, remark = tokens, "without a prefix cache no slot is held twice"
    else:
        need, remark = running * context, f"{running:,} requests of {context:,} tokens fit"
    return Capacity(
        name="verify entries",
        code="C4",
        rule="verify-share",
        status="OK" if finding is None else "INFO",
        value=sizes.verify,
        need=need,
        is_exact=finding is None,
        bound_by=sizes.verify_by,
        formula="3 x pool tokens",
        terms={"pool_tokens": tokens, "running_requests": running, "context_length": context},
        worked=f"3 x pool tokens = 3 x {tokens:,}",
        remark=remark,
    )


def _overflow_example(running: int, context: int, verify: int) -> str:
    """The fewest requests whose common prefix makes the server skip a verify pass."""
    prefix = min(_EXAMPLE_PREFIX, context)
    requests = verify // prefix + 1
    if requests > running:
        requests, prefix = running, verify // running + 1
    return f"overflows from {requests:,} requests that share {prefix:,} tokens each"


def _requests(setup: Setup, sizes: Sizes, finding: Finding | None) -> Capacity:
    batch, running = setup.graph.max_batch, sizes.running.requests
    return Capacity(
        name="write requests",
        code="C1",
        rule="req-plan",
        status="OK",
        value=sizes.write_req,
        need=running,
        is_exact=True,
        bound_by=sizes.write_req_by,
        formula="max(cuda-graph batch, running requests)",
        terms={"cuda_graph_batch": batch, "running_requests": running},
        worked=f"max(cuda-graph batch {batch:,}, running requests {running:,})",
        remark=_RUNNING_REMARKS[sizes.running.by],
        server_message=None if finding is None else finding.hit.server_message,
    )


def _entries(setup: Setup, sizes: Sizes, finding: Finding | None) -> Capacity:
    prefill, draft = setup.prefill, setup.speculation.draft_tokens
    decode = sizes.running.requests * draft
    per_request = f"{draft:,} draft tokens" if draft > 1 else "1 token"
    if prefill.chunk > 0:
        need, is_exact = max(min(prefill.chunk, setup.pool.tokens), decode), True
        rule, remark = "entry-chunk", ""
        limit = f"min(max prefill {prefill.max_tokens:,}, chunk {prefill.chunk:,})"
        formula = "max(write requests x draft tokens, min(max prefill tokens, chunk))"
    else:
        need, is_exact = max(longest_prompt(setup), decode), False
        rule = "chunk-zero" if prefill.chunk == 0 else "entry-unchunked"
        remark = "need: the longest prompt, prefilled at once; several in one forward need more"
        limit = "chunk 0" if prefill.chunk == 0 else f"max prefill {prefill.max_tokens:,}"
        formula = (
            f"max(write requests x draft tokens, {'chunk' if prefill.chunk == 0 else 'max prefill tokens'})"
        )
    status: Status = "OK"
    if finding is not None:
        status = "OVER"
    elif not is_exact and sizes.write_entry * 100 < need * TIGHT_PERCENT:
        status = "TIGHT"
    return Capacity(
        name="write entries",
        code="C2",
        rule=rule,
        status=status,
        value=sizes.write_entry,
        need=need,
        is_exact=is_exact and finding is None,
        bound_by=sizes.write_entry_by,
        formula=formula,
        terms={
            "write_requests": sizes.write_req,
            "draft_tokens": draft,
            "max_prefill_tokens": prefill.max_tokens,
            "chunk": prefill.chunk,
            "context_length": setup.pool.context_length,
        },
        worked=f"max({sizes.write_req:,} x {per_request}, {limit})",
        remark=remark,
        server_message=None if finding is None else finding.hit.server_message,
    )


def _plan(sizes: Sizes, finding: Finding | None) -> Capacity:
    return Capacity(
        name="plan batch",
        code="C1",
        rule="req-plan",
        status="OK" if finding is None else "OVER",
        value=PLAN_REQUESTS,
        need=sizes.write_req,
        is_exact=False,
        bound_by=BUILT_IN,
        formula="requests that one program scans",
        terms={"write_requests": sizes.write_req},
        worked="one program scans all requests of a step",
        server_message=None if finding is None else finding.hit.server_message,
    )


def _token_ids(sizes: Sizes, finding: Finding | None) -> Capacity:
    return Capacity(
        name="token-id batch",
        code="C1",
        rule="scatter",
        status="OK" if finding is None else "OVER",
        value=SCATTER_REQUESTS,
        need=sizes.running.requests,
        is_exact=False,
        bound_by=BUILT_IN,
        formula="offsets of one block - 1",
        terms={"offsets": SCATTER_REQUESTS + 1, "running_requests": sizes.running.requests},
        worked=f"{SCATTER_REQUESTS + 1:,} offsets - 1",
        remark="need: running requests",
        server_message=None if finding is None else finding.hit.server_message,
    )
