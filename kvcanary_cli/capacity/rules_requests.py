"""Rules about the requests of one step."""

from __future__ import annotations

from kvcanary_cli.capacity.changes import (
    PLAN_REQUESTS,
    SCATTER_REQUESTS,
    Change,
    lower_graph,
    lower_running,
    raise_graph,
    token_check_off,
)
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule, no_changes
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels import messages


def padded_requests(setup: Setup, sizes: Sizes) -> int:
    """Rows of a full batch: as many as attention-parallel ranks divide."""
    attn_tp = setup.parallel.attn_tp
    return -(-sizes.running.requests // attn_tp) * attn_tp


def _req_plan(setup: Setup, sizes: Sizes) -> Hit | None:
    if sizes.write_req <= PLAN_REQUESTS:
        return None
    # the kernel is launched for all rows of the plan, so no batch has to grow first
    return Hit(
        text="the first step would raise",
        when="at first capture" if setup.graph.is_on else "at the first step",
        server_message=messages.plan_batch(sizes.write_req),
    )


def _req_plan_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    if sizes.running.requests > PLAN_REQUESTS:
        return [(lower_running(setup, PLAN_REQUESTS),)]
    return [(lower_graph(request, setup, PLAN_REQUESTS),)]


def _scatter(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.canary.is_token_check_on or sizes.running.requests <= SCATTER_REQUESTS:
        return None
    return Hit(
        text=f"a step of {SCATTER_REQUESTS + 1:,} requests would raise",
        when="at a full batch",
        server_message=messages.scatter_batch(SCATTER_REQUESTS + 1),
    )


def _scatter_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(lower_running(setup, SCATTER_REQUESTS),), (token_check_off(),)]


def _req_rounding(setup: Setup, sizes: Sizes) -> Hit | None:
    rows, running = padded_requests(setup, sizes), sizes.running.requests
    if rows <= sizes.write_req:
        return None
    return Hit(
        text=f"a full batch of {running:,} requests is padded to {rows:,} rows for {setup.parallel.attn_tp:,} "
        "attention ranks, which would raise",
        when="at a full batch",
        server_message=messages.write_req(rows, sizes.write_req, flag=setup.version.graph_batch_flag),
        value=sizes.write_req,
        need=rows,
        setting=sizes.running_by,
    )


def _req_rounding_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    attn_tp = setup.parallel.attn_tp
    rows = padded_requests(setup, sizes)
    changes: list[Change] = []
    if sizes.running.requests >= attn_tp:
        changes.append(lower_running(setup, rows - attn_tp))
    if rows <= PLAN_REQUESTS:
        graph = raise_graph(setup, rows)
        changes += [] if graph is None else [graph]
    if sizes.running.requests < attn_tp:
        changes.append(lower_running(setup, rows)._replace(note=""))
    return [(change,) for change in changes]


def _verify_share(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.is_radix_on or sizes.running.requests * setup.pool.context_length <= sizes.verify:
        return None
    return Hit(text="prefix sharing can make the server skip its verification for a step", when="silently")


REQUEST_RULES = (
    Rule(
        id="req-plan",
        code="C1",
        severity="error",
        title="more write requests than one plan program scans",
        capacity="plan batch",
        check=_req_plan,
        changes=_req_plan_changes,
    ),
    Rule(
        id="scatter",
        code="C1",
        severity="error",
        title="the token check can't take as many requests as the flags allow",
        capacity="token-id batch",
        check=_scatter,
        changes=_scatter_changes,
        is_bound=True,
    ),
    Rule(
        id="req-rounding",
        code="C1",
        severity="error",
        title="a full batch, padded for attention-parallel ranks, exceeds the write requests",
        check=_req_rounding,
        changes=_req_rounding_changes,
        is_bound=True,
    ),
)

VERIFY_RULES = (
    Rule(
        id="verify-share",
        code="C4",
        severity="info",
        title="shared prefixes can make the server skip a verify pass",
        capacity="verify entries",
        check=_verify_share,
        changes=no_changes,
        is_bound=True,
    ),
)
