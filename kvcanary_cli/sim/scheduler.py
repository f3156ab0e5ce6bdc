"""Serving requests with a modelled scheduler, one of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcanary_cli.errors import PhaseError
from kvcanary_cli.sim.config import SimConfig
from kvcanary_cli.sim.facts import OnStep
from kvcanary_cli.sim.sglang import SglangScheduler
from kvcanary_cli.trace.events import Event, Header
from kvcanary_cli.trace.requests import Request


def simulate(
    requests: Iterable[Request], config: SimConfig, *, on_step: OnStep | None = None
) -> tuple[Header, Iterator[Event]]:
    """Serve `requests` (in order of arrival) and tell what happens to the KV pool as trace v1.

    Requests are read when their time comes, and events are made one forward at a time, so neither has to
    fit into memory. The same requests and settings give the same events.

    Args:
        on_step: called with the facts of each forward, while events are read.

    Raises: InputError, while events are read, for a request that can never be served with these settings
        or that is out of order.
    """
    if config.scheduler == "vllm":
        from kvcanary_cli.sim.vllm import VllmScheduler  # deferred: most runs need only one of the two

        return config.header(), VllmScheduler(requests, config, on_step=on_step).events()
    return config.header(), SglangScheduler(requests, config, on_step=on_step).events()


def observe(requests: Iterable[Request], config: SimConfig, on_step: OnStep) -> None:
    """Serve `requests` as `simulate` does, for the facts of its forwards alone: no event is made.

    Raises: InputError as `simulate` does.
    """
    if config.scheduler == "vllm":
        from kvcanary_cli.sim.vllm import VllmScheduler

        events = VllmScheduler(requests, config, on_step=on_step, events=False).events()
    else:
        events = SglangScheduler(requests, config, on_step=on_step, events=False).events()
    for _ in events:
        raise PhaseError("a silent run has made an event")
