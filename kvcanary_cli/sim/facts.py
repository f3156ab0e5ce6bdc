"""What a forward of a modelled server was like, for whoever watches the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Mode = Literal["extend", "decode", "mixed", "verify"]


class StepFacts(NamedTuple):
    """One forward, as it is launched. Totals count from the start of the run up to this launch.

    Attributes:
        step: number of the forward, from 0.
        time_s, seconds: when it is launched, and how long it takes by the cost model.
        mode: as in trace v1.
        lanes: requests in the forward.
        width: lanes of the captured graph that it is padded to, else `lanes`.
        decode_lanes: those of the lanes that decode or verify.
        tokens: that the forward writes.
        prefill_tokens: those of them that belong to prompts.
        context_tokens: that its decode lanes have written before.
        verify_entries: entries of a canary's verify pass over the full group: what all lanes have written before.
        window_entries: the same for the window group, 0 without one.
        running: requests that have a row, in this forward or not.
        waiting: requests that arrived and have none.
        used_slots: slots that are not free: held by requests, by the prefix cache, or both.
        cached_slots: slots that the prefix cache holds.
        used_window_slots: the same as `used_slots` for the window pool.
        hit_tokens: prompt tokens found in the prefix cache so far.
        evicted_slots, retracted, finished: slots given up by the cache, requests put back to the queue, and
            requests that ended, so far.
        request_slots: slots that requests hold, shared ones counted once.
        sampled_tokens: output tokens that the forward gives.
        prompted_tokens: prompt tokens of the requests that get their first one from it.
    """

    step: int
    time_s: float
    seconds: float
    mode: Mode
    lanes: int
    width: int
    decode_lanes: int
    tokens: int
    prefill_tokens: int
    context_tokens: int
    verify_entries: int
    window_entries: int
    running: int
    waiting: int
    used_slots: int
    cached_slots: int
    used_window_slots: int
    hit_tokens: int
    evicted_slots: int
    retracted: int
    finished: int
    request_slots: int = 0
    sampled_tokens: int = 0
    prompted_tokens: int = 0


OnStep = Callable[[StepFacts], None]
