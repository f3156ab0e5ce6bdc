"""How long a forward takes: a linear model, the same for every scheduler."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from kvcanary_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Seconds of a forward, as a sum of what is in it.

    Args:
        prefill_token_s: for each prompt token that the forward computes.
        decode_step_s: once, if the forward decodes.
        decode_lane_s: for each lane that decodes.
        context_token_s: for each token that the decode lanes have in the cache.
        forward_s: once for every forward, whatever is in it.

    Raises: UsageError for a cost that is negative or no number, or if a prefill or a decode would take no time.
    """

    prefill_token_s: float = 1 / 20_000
    decode_step_s: float = 0.025
    decode_lane_s: float = 0.0
    context_token_s: float = 0.0
    forward_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"`{name}` is {value}, a number of seconds from 0 on is needed")
        for what, lanes, tokens in (("prefill", 0, 1), ("decode", 1, 0)):
            if self.step_s(tokens, lanes, 0) <= 0:
                raise UsageError(f"a {what} takes no time with these costs, the clock would stand still")

    def step_s(self, prefill_tokens: int, decode_lanes: int, context_tokens: int) -> float:
        """Seconds of a forward with so many prompt tokens, and decode lanes that read so much context."""
        seconds = self.forward_s + prefill_tokens * self.prefill_token_s
        if decode_lanes:
            seconds += self.decode_step_s + decode_lanes * self.decode_lane_s
            seconds += context_tokens * self.context_token_s
        return seconds
