"""Batch sizes for which SGLang 0.5.23 captures decode graphs."""

from __future__ import annotations


def captured_lanes(largest: int, *, max_running_requests: int, speculative: bool = False) -> tuple[int, ...]:
    """Sizes up to `largest`, with smaller steps for speculative decoding, none above `max_running_requests`.

    The largest size is always among them, and so is `max_running_requests` where it cuts the list short.
    """
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
        sizes += range(272, largest + 1, 16)
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32)]
    chosen = {size for size in sizes if size <= largest} | {largest}
    if largest > max_running_requests:
        chosen.add(max_running_requests)
    return tuple(sorted(size for size in chosen if size <= max_running_requests))
