"""The one value of one flag with which a launch passes: as far as it may go, or the only one there is."""

from __future__ import annotations

from kvcanary_cli.capacity.changes import Change
from kvcanary_cli.capacity.fixes import apply, failing_with, solve
from kvcanary_cli.capacity.graphs import MAX_BS, spelled_graph_flag
from kvcanary_cli.capacity.memory_budget import MEMORY_FRACTION
from kvcanary_cli.capacity.numbers import MAX_COUNT
from kvcanary_cli.capacity.prefill import CHUNK, MAX_PREFILL
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import Severity
from kvcanary_cli.capacity.setup import MAX_RUNNING, Setup, resolve
from kvcanary_cli.errors import UsageError, nearest


def solve_flag(request: Request, spelled: str) -> str | None:
    """The value of a flag with which the audit passes, None where no value does.

    A size is the largest that works, a prefill budget the smallest; any other flag has the value of a fix.

    Raises: UsageError for what is no flag of the server, and what `resolve` raises.
    """
    flag = _named(request, spelled)
    setup = resolve(request)
    end = _far_end(flag, setup)
    severities: tuple[Severity, ...] = ("error", "warning") if flag == MEMORY_FRACTION else ("error",)
    if end is None:
        found = [fix.changes[0] for fix in solve(request, *severities) if len(fix.changes) == 1]
        return next((change.value for change in found if change.flag == flag), None)
    start = Change(flag=flag, value=end)
    if failing_with(request, (start,), *severities) == []:
        return end
    fixes = solve(apply(request, (start,)), *severities)
    found = [fix.changes[0] for fix in fixes if len(fix.changes) == 1]
    return next((change.value for change in found if change.flag == flag), None)


def _named(request: Request, spelled: str) -> str:
    word = spelled if spelled.startswith("-") else f"--{spelled}"
    flag = request.table.find(word) if word in request.table.spellings() else None
    if flag is None:
        close = nearest(word, request.table.spellings())
        raise UsageError(
            f"`--solve` {spelled} is not a flag of the server",
            hint=f"did you mean `{close}`?" if close else None,
        )
    return spelled_graph_flag(request.version, flag.name)


def _far_end(flag: str, setup: Setup) -> str | None:
    """The value from which to solve: further than any that is of use; None for flags without sizes."""
    attn_dp, page, tokens = setup.parallel.attn_dp, setup.pool.page_size, setup.pool.tokens
    if flag == CHUNK:
        return str(-(-tokens // page) * page * attn_dp)
    if flag == MAX_RUNNING:
        return str(max(1, tokens // 2) * attn_dp)
    if flag == MAX_PREFILL:
        return "1"
    if flag == spelled_graph_flag(setup.version, MAX_BS):
        return str(MAX_COUNT)
    return "0.999" if flag == MEMORY_FRACTION else None
