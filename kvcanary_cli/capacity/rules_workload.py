"""Rules about a measured workload: they take the place of those that bound a need by flags."""

from __future__ import annotations

from kvcanary_cli.capacity.changes import SCATTER_REQUESTS, Change, raise_graph, token_check_off
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule, no_changes
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.kernels import messages


def _need_requests(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.workload is None or setup.workload.requests.need <= sizes.write_req:
        return None
    need, step = setup.workload.requests
    return Hit(
        text=f"step {step:,} of the workload has {need:,} requests, which would raise",
        when="under load",
        server_message=messages.write_req(need, sizes.write_req, flag=setup.version.graph_batch_flag),
    )


def _need_requests_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    graph = None if setup.workload is None else raise_graph(setup, setup.workload.requests.need)
    return [] if graph is None else [(graph,)]


def _need_entries(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.workload is None or setup.workload.tokens.need <= sizes.write_entry:
        return None
    need, step = setup.workload.tokens
    return Hit(
        text=f"step {step:,} of the workload writes {need:,} tokens, which would raise",
        when="at the first long prompt",
        server_message=messages.write_entry(need, sizes.write_entry),
    )


def _need_entries_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    need = 0 if setup.workload is None else setup.workload.tokens.need
    changes: list[Change] = []
    if setup.prefill.max_tokens < need:
        changes.append(Change(flag=MAX_PREFILL, value=str(need), note="smallest that works"))
    if 0 <= setup.prefill.chunk < need:
        page = setup.pool.page_size
        chunk = -(-need // page) * page * setup.parallel.attn_dp
        changes.append(Change(flag=CHUNK, value=str(chunk), note="smallest that works"))
    return [tuple(changes)] if changes else []


def _need_verify(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.workload is None:
        return None
    group, (need, step) = setup.workload.most_verified
    if need <= sizes.verify:
        return None
    return Hit(
        text=f"step {step:,} of the workload asks for {need:,} verify entries of the {group} group: the server "
        "skips that pass, with one warning",
        when="silently",
    )


def _need_token_ids(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.workload is None or not setup.canary.is_token_check_on:
        return None
    need, step = setup.workload.requests
    if need <= SCATTER_REQUESTS:
        return None
    return Hit(
        text=f"step {step:,} of the workload has {need:,} requests, which would raise",
        when="under load",
        server_message=messages.scatter_batch(need),
    )


def _need_token_ids_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(token_check_off(),)]


WORKLOAD_RULES = (
    Rule(
        "need-requests",
        "error",
        "a step of the workload has more requests than there is room for",
        _need_requests,
        _need_requests_changes,
        code="C1",
        capacity="write requests",
    ),
    Rule(
        "need-entries",
        "error",
        "a step of the workload writes more tokens than there is room for",
        _need_entries,
        _need_entries_changes,
        code="C2",
        capacity="write entries",
    ),
    Rule(
        "need-verify",
        "error",
        "a step of the workload asks for more verify entries than there is room for",
        _need_verify,
        no_changes,
        code="C4",
        capacity="verify entries",
    ),
    Rule(
        "need-token-ids",
        "error",
        "a step of the workload has more requests than the token check takes",
        _need_token_ids,
        _need_token_ids_changes,
        code="C1",
        capacity="token-id batch",
    ),
)
