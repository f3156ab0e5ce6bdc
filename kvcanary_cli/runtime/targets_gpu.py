"""Which stamp buffers of a run on a GPU are launched together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.kernels.log import ViolationLog
from kvcanary_cli.kernels.sources import KvSource
from kvcanary_cli.kernels.targets import Target, Targets
from kvcanary_cli.runtime.layout import HEAD, TAIL, Layout, launch_tag


def group_targets(
    layout: Layout,
    stamps: Mapping[tuple[str, str, str], torch.Tensor],
    hashed: Mapping[tuple[str, str], list[KvSource]],
    tag_logs: Sequence[ViolationLog],
) -> dict[tuple[str, str, str], Targets]:
    """(phase, half, group) of the buffer whose turn it is -> all buffers that are launched then.

    Args:
        stamps: buffers by phase, half and group.
        hashed: sources that TAIL hashes, by half and group.
        tag_logs: a log a launch tag.
    """

    def target(phase: str, half: str, group: str) -> Target:
        sources = hashed[half, group] if phase == TAIL else []
        tag = launch_tag(phase, half, group)
        return Target(
            canary_buf=stamps[phase, half, group],
            sources=sources,
            hash_mode=HashMode.ALL if sources else HashMode.NONE,
            launch_tag=tag,
            log=tag_logs[tag],
        )

    targets = {}
    for group in layout.groups:
        is_hashed = any(hashed[half, group.kind] for half in layout.halves)
        for phases in [(HEAD,), (TAIL,)] if is_hashed else [(HEAD, TAIL)]:
            items = [target(phase, half, group.kind) for phase in phases for half in layout.halves]
            targets[phases[0], layout.halves[0], group.kind] = Targets(tuple(items))
    return targets
