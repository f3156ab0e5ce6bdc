"""What the server's canary would have refused or skipped, forward by forward."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels.consts import SERVER_PLAN_LANES, SERVER_SCATTER_BATCH_BLOCK


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Launch capacities of the server that a trace comes from; None: not known, not checked.

    Attributes:
        is_known: whether any of them was stated, so that the server's built-in limits apply too.
        names_decode_flag: whether the server's message names `--cuda-graph-max-bs-decode`.
    """

    write_req_capacity: int | None = None
    write_entry_capacity: int | None = None
    verify_capacity: int | None = None

    @property
    def is_known(self) -> bool:
        stated = (self.write_req_capacity, self.write_entry_capacity, self.verify_capacity)
        return any(value is not None for value in stated)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityViolation:
    """One forward that asks for more than the server's canary has room for.

    Attributes:
        step: forward, from 0.
        batch: lanes of the forward, its graph's width if that is larger.
        tokens: tokens that it writes.
        capacity: which limit, by the name that the trace's header uses.
        need, limit: what was asked, what there is.
        group: buffer group, for `verify_capacity`.
        flag: the launch flag that decides the limit.
        server_message: what the server logs, or None when it says nothing.
        kind: code of the capacity fault.
    """

    step: int
    batch: int
    tokens: int
    capacity: str
    need: int
    limit: int
    flag: str
    kind: str
    server_message: str | None
    group: str | None = None


def check_forward(
    limits: Limits, *, step: int, batch: int, tokens: int, entries: dict[str, int], checks_tokens: bool
) -> list[CapacityViolation]:
    """Capacity violations of one forward.

    Args:
        batch: the larger of lanes and graph width.
        tokens: tokens written, padded lanes included.
        entries: verify entries asked for, by group.
        checks_tokens: whether expected tokens are scattered for this forward.
    """
    found: list[CapacityViolation] = []

    def over(
        capacity: str,
        need: int,
        limit: int | None,
        flag: str,
        kind: str,
        message: str | None,
        group: str | None = None,
    ) -> None:
        if limit is not None and need > limit:
            found.append(
                CapacityViolation(
                    step=step,
                    batch=batch,
                    tokens=tokens,
                    capacity=capacity,
                    need=need,
                    limit=limit,
                    flag=flag,
                    kind=kind,
                    server_message=message,
                    group=group,
                )
            )

    if not limits.is_known:
        return found
    req, entry = limits.write_req_capacity, limits.write_entry_capacity
    if req is not None and batch > req:
        over("write_req_capacity", batch, req, "--max-running-requests", "C1", messages.write_req(batch, req))
    if entry is not None and tokens > entry:
        over(
            "write_entry_capacity",
            tokens,
            entry,
            "--chunked-prefill-size",
            "C2",
            messages.write_entry(tokens, entry),
        )
    for group, need in entries.items():
        over("verify_capacity", need, limits.verify_capacity, "--max-total-tokens", "C4", None, group)
    if batch > SERVER_PLAN_LANES:
        over(
            "plan_batch", batch, SERVER_PLAN_LANES, "--max-running-requests", "C1", messages.plan_batch(batch)
        )
    if checks_tokens and batch + 1 > SERVER_SCATTER_BATCH_BLOCK:
        over(
            "scatter_batch",
            batch,
            SERVER_SCATTER_BATCH_BLOCK - 1,
            "--max-running-requests",
            "C1",
            messages.scatter_batch(batch),
        )
    return found
