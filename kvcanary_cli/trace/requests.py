"""What every request trace comes down to: who arrives when, with how much to read and to write."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOKENS = (1 << 31) - 1  # of one request: more would not fit into a page table of int32


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of a request trace.

    Attributes:
        rid: unique in its trace.
        arrival_s: seconds from the start of the trace, never before. Of a request with `after`: the earliest time.
        input_length, output_length: tokens of the prompt, and tokens generated.
        block_ids: each names `block_size` tokens of the prompt from its start on, the last one perhaps fewer; equal
            ids are equal tokens. There are none where the format has no ids.
        session: conversation that the request is a turn of.
        after: request that has to end before this one is sent, `delay_s` seconds later (think time, tools).
        priority: smaller is served first, where a scheduler looks at it.
        prompt_tokens: token ids of the whole prompt, where the format has them.
    """

    rid: str
    arrival_s: float
    input_length: int
    output_length: int
    block_ids: tuple[int, ...] = ()
    block_size: int = 1
    session: str | None = None
    after: str | None = None
    delay_s: float = 0.0
    priority: int = 0
    prompt_tokens: tuple[int, ...] | None = None
