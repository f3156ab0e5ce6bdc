"""Which block size a request trace was written with, which most formats do not say."""

from __future__ import annotations

from kvcanary_cli.trace.requests import MAX_TOKENS


class BlockSizes:
    """Which block sizes explain the number of ids in every row seen, partial blocks counted or not."""

    def __init__(self) -> None:
        self._up = (1, MAX_TOKENS)
        self._down = (1, MAX_TOKENS)

    def add(self, tokens: int, count: int) -> None:
        """One more row, of `tokens` in `count` blocks, at least 1."""
        least, most = self._up
        most = min(most, (tokens - 1) // (count - 1)) if count > 1 else most
        self._up = (max(least, -(-tokens // count)), most)
        least, most = self._down
        self._down = (max(least, tokens // (count + 1) + 1), min(most, tokens // count))

    def fit(self, size: int) -> bool:
        """Whether blocks of `size` tokens explain all rows in one of the two ways."""
        return self._up[0] <= size <= self._up[1] or self._down[0] <= size <= self._down[1]

    def hint(self) -> str:
        """What to do about a size that does not fit, from the rows with partial blocks counted."""
        least, most = self._up
        if least > most:
            return "no block size explains the number of ids in every row"
        if least == most:
            return f"`--block-size {least}` fits every row"
        return f"`--block-size N` fits every row with N from {least:,} to {most:,}"
