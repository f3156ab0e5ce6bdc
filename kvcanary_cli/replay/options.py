"""What a user asks of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.replay.capacities import Limits
from kvcanary_cli.runtime.devices import DeviceChoice

CHAINS = ("mixed", "affine")
CHECKS = ("chain_hash", "position", "real_kv_hash", "verify_token", "write_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """Options of one run.

    Attributes:
        device: where the kernels run.
        hash_mode: how much of each byte source is hashed.
        sweep_interval: forwards between sweeps of the prefix cache; 0: only at `sweep` events.
        limits: capacities that win over the trace's header, each None where the header decides.
        ring: rows of the violation log; None: the trace's.
        limit_steps, limit_requests: stop after so many forwards, before one more request.
        stop_on_violation: stop after the forward with the first finding.
        required: checks without which the run is incomplete.
        threads: threads of the CPU backend; None: all cores.
        incremental: verify only what something touched since its last good check.
        is_affine: stamps hold affine chains, not the server's mixed ones.
        history: (group, slot) whose every event is kept; None for the group is the pool's first.
    """

    device: DeviceChoice
    hash_mode: HashMode = HashMode.ALL
    sweep_interval: int = 0
    limits: Limits = field(default_factory=Limits)
    ring: int | None = None
    limit_steps: int | None = None
    limit_requests: int | None = None
    stop_on_violation: bool = False
    required: tuple[str, ...] = ()
    threads: int | None = None
    incremental: bool = False
    is_affine: bool = False
    history: tuple[str | None, int] | None = None
