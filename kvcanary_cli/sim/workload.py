"""Made-up requests: lengths, arrivals and shared prompt beginnings drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvcanary_cli.trace.requests import Request

BLOCK_TOKENS = 32  # prompt beginnings are shared in units of this


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Ranges to draw from, both ends included.

    Args:
        inputs: prompt tokens beside the shared beginning.
        outputs: tokens generated.
        gap_ms: time between two arrivals.
        burst: how many requests arrive at once.
        prefixes: tokens of the shared beginnings, rounded up to blocks.
        families: how many different beginnings there are.
        shared_percent: how many of the requests have one.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    gap_ms: tuple[int, int]
    prefixes: tuple[int, int]
    families: int = 3
    shared_percent: int = 50
    burst: int = 1

    @property
    def longest(self) -> int:
        """Tokens, prompt and output, of the largest possible request."""
        return self.inputs[1] + self.outputs[1] + _blocks(self.prefixes[1]) * BLOCK_TOKENS

    def fitted(self, tokens: int) -> Workload:
        """The same workload, scaled down until its largest request has at most `tokens` tokens."""
        if self.longest <= tokens:
            return self
        share = tokens / self.longest
        small = replace(
            self,
            inputs=_scaled(self.inputs, share),
            outputs=_scaled(self.outputs, share),
            prefixes=_scaled(self.prefixes, share),
        )
        # blocks round up, so a small pool has no room for a shared beginning
        return small if small.longest <= tokens else replace(small, prefixes=(0, 0))


def draw_requests(workload: Workload, *, seed: str, count: int | None) -> Iterator[Request]:
    """`count` requests (None: without end) in order of arrival; the same seed gives the same ones."""
    rng = random.Random(seed)
    lengths = [_blocks(rng.randint(*workload.prefixes)) for _ in range(workload.families)]
    arrival_ms = number = 0
    while number != count:
        number += 1
        family = rng.randrange(workload.families) if rng.randrange(100) < workload.shared_percent else None
        blocks = lengths[family] if family is not None else 0
        ids = tuple((family << 32) + index for index in range(blocks)) if family is not None else ()
        yield Request(
            rid=f"req-{number}",
            arrival_s=arrival_ms / 1000,
            input_length=blocks * BLOCK_TOKENS + rng.randint(*workload.inputs),
            output_length=rng.randint(*workload.outputs),
            block_ids=ids,
            block_size=BLOCK_TOKENS,
        )
        if number % workload.burst == 0:
            arrival_ms += rng.randint(*workload.gap_ms)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _scaled(bounds: tuple[int, int], share: float) -> tuple[int, int]:
    return max(1, int(bounds[0] * share)), max(1, int(bounds[1] * share))
