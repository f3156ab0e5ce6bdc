"""What the server's canary would have refused or skipped, forward by forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvcanary_cli.kernels import messages
from kvcanary_cli.kernels.consts import SERVER_PLAN_LANES, SERVER_SCATTER_BATCH_BLOCK

MOST_KEPT = 10_000  # a limit that every forward exceeds must not fill the memory of a long run
BATCH_FLAG = "--max-running-requests"
RING_VARIABLE = "SGLANG_KV_CANARY_RING_CAPACITY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Launch capacities of the server that a trace comes from; None: not known, not checked."""

    write_req_capacity: int | None = None
    write_entry_capacity: int | None = None
    verify_capacity: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether any was stated, so that the server's built-in limits apply too."""
        stated = (self.write_req_capacity, self.write_entry_capacity, self.verify_capacity)
        return any(value is not None for value in stated)


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one forward asks for.

    Attributes:
        step: forward, from 0.
        batch: lanes, or its graph's width if that is larger.
        tokens: tokens written, padded lanes included.
        entries: verify entries, by group.
        checks_tokens: whether expected tokens are scattered for it.
        drafts: whether it writes draft tokens, which the size of a limit has to multiply in.
    """

    step: int
    batch: int
    tokens: int
    entries: dict[str, int]
    checks_tokens: bool = False
    drafts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityViolation:
    """One forward that asks for more than the server's canary has room for.

    Attributes:
        step, batch, tokens: as in `Demand`.
        capacity: which limit, by the name that the trace's header uses.
        need, limit: what was asked, what there is.
        flag: the launch flag that decides the limit.
        kind: code of the capacity fault.
        server_message: what the server logs, None when it says nothing.
        group: buffer group, for `verify_capacity`.
    """

    step: int
    batch: int
    tokens: int
    capacity: str
    need: int
    limit: int
    flag: str
    kind: str
    server_message: str | None = None
    group: str | None = None


class CapacityLog:
    """Capacity violations of a run: the first ones kept, all of them counted.

    Attributes:
        kept: the first `MOST_KEPT`, in order.
        total: all of them.
    """

    def __init__(self) -> None:
        self.kept: list[CapacityViolation] = []
        self.total = 0

    def add(self, found: list[CapacityViolation]) -> None:
        """Take the violations of one forward."""
        self.total += len(found)
        self.kept += found[: max(0, MOST_KEPT - len(self.kept))]


def check_forward(limits: Limits, demand: Demand) -> list[CapacityViolation]:
    """Capacity violations of one forward; none where nothing is known of the server."""
    return list(_violations(limits, demand)) if limits.is_known else []


def ring_saturation(total: int, ring_capacity: int, step: int) -> CapacityViolation | None:
    """C7: more violations than the log has rows; it counts them all and keeps the first."""
    if total <= ring_capacity:
        return None
    return CapacityViolation(
        step=step,
        batch=0,
        tokens=0,
        capacity="violation_log",
        need=total,
        limit=ring_capacity,
        flag=RING_VARIABLE,
        kind="C7",
    )


def _violations(limits: Limits, demand: Demand) -> Iterator[CapacityViolation]:
    batch, tokens = demand.batch, demand.tokens
    lanes, entry = limits.write_req_capacity, limits.write_entry_capacity
    if lanes is not None and batch > lanes:
        yield _over(
            demand, "write_req_capacity", batch, lanes, BATCH_FLAG, "C1", messages.write_req(batch, lanes)
        )
    if entry is not None and tokens > entry:
        flag, kind = (
            ("--speculative-num-draft-tokens", "C3") if demand.drafts else ("--chunked-prefill-size", "C2")
        )
        yield _over(
            demand, "write_entry_capacity", tokens, entry, flag, kind, messages.write_entry(tokens, entry)
        )
    for group, need in demand.entries.items():
        if limits.verify_capacity is not None and need > limits.verify_capacity:
            yield _over(
                demand,
                "verify_capacity",
                need,
                limits.verify_capacity,
                "--max-total-tokens",
                "C4",
                None,
                group,
            )
    if batch > SERVER_PLAN_LANES:
        text = messages.plan_batch(batch)
        yield _over(demand, "plan_batch", batch, SERVER_PLAN_LANES, BATCH_FLAG, "C1", text)
    if demand.checks_tokens and batch + 1 > SERVER_SCATTER_BATCH_BLOCK:
        text = messages.scatter_batch(batch)
        yield _over(demand, "scatter_batch", batch, SERVER_SCATTER_BATCH_BLOCK - 1, BATCH_FLAG, "C1", text)


def _over(
    demand: Demand,
    capacity: str,
    need: int,
    limit: int,
    flag: str,
    kind: str,
    message: str | None,
    group: str | None = None,
) -> CapacityViolation:
    return CapacityViolation(
        step=demand.step,
        batch=demand.batch,
        tokens=demand.tokens,
        capacity=capacity,
        need=need,
        limit=limit,
        flag=flag,
        kind=kind,
        server_message=message,
        group=group,
    )
