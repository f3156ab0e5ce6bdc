"""What every request trace comes down to: who arrives when, with how much to read and to write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of a request trace.

    `arrival_s` counts from the start of the trace. `input_length` is the prompt in tokens, `output_length`
    the tokens that were generated. Each of `block_ids` names `block_size` tokens of the prompt, the last
    one perhaps fewer; equal ids are equal tokens. There are none where the format has no ids.
    """

    rid: str
    arrival_s: float
    input_length: int
    output_length: int
    block_ids: tuple[int, ...] = ()
    block_size: int = 1
