"""Reader of Mooncake rows whose later turns carry only what is new ("mooncake-delta", ai-dynamo 1.6).

The true prompt of a turn is everything that its session read and wrote before, and the new tokens. No key
tells such a file from a plain one, so it has to be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcanary_cli.trace.files import ByteReader, LineError
from kvcanary_cli.trace.json_rows import JsonFormat
from kvcanary_cli.trace.mooncake import MooncakeReader
from kvcanary_cli.trace.pieces import LAID_NOTE, LAID_TOKENS, lay
from kvcanary_cli.trace.request_trace import MAX_TOKENS, ReadOptions, Row
from kvcanary_cli.trace.tokens import fnv1a64


class DeltaReader:
    """See `Reader`; `--block-size` is that of the file, rows leave in blocks of `LAID_TOKENS`."""

    has_prefix_ids = True

    def __init__(self, path: str, options: ReadOptions) -> None:
        self._inner = MooncakeReader(path, options)
        self.block_size = LAID_TOKENS
        self.counts_up: bool | None = True
        self.unknown_keys = self._inner.unknown_keys
        self.notes = self._inner.notes
        # of each session its latest row, and what it read and wrote as (piece, tokens)
        self._before: dict[str, Row] = {}
        self._pieces: dict[str, list[tuple[int, int]]] = {}

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """As `Reader.rows`."""
        for row in self._inner.rows(source):
            yield row if isinstance(row, LineError) else self._whole(row)

    def _whole(self, row: Row) -> Row | LineError:
        """The row with its true prompt."""
        session = row.session
        if session is None:
            return row._replace(block_ids=None if row.block_ids is None else lay(self._new_pieces(row)))
        pieces = [*self._pieces.get(session, ()), *self._new_pieces(row)]
        tokens = sum(count for _, count in pieces)
        if tokens > MAX_TOKENS:
            return LineError(
                f"the session has {tokens:,} tokens with this row, at most {MAX_TOKENS:,} are possible",
                path="$.input_length",
            )
        before = self._before.get(session)
        whole = row._replace(input_length=tokens, block_ids=lay(pieces))
        if before is not None:
            whole = whole._replace(after=before.rid, time_ns=max(row.time_ns, before.time_ns))
            self.notes.add("a later turn: its prompt is the session so far and the new tokens", row.line)
        self.notes.add(LAID_NOTE, row.line)
        self._before[session] = whole
        self._pieces[session] = [*pieces, (2 * fnv1a64(f"output of {row.rid}"), row.output_length)]
        return whole

    def _new_pieces(self, row: Row) -> list[tuple[int, int]]:
        size, left = self._inner.block_size, row.input_length
        pieces = []
        for block_id in row.block_ids or ():
            pieces.append((2 * block_id + 1, min(size, left)))
            left -= pieces[-1][1]
        # tokens that no id names are the request's own
        return [*pieces, (2 * fnv1a64(row.rid), left)]


FORMAT = JsonFormat(
    name="mooncake-delta", title="Mooncake request trace with new tokens only", make=DeltaReader
)
