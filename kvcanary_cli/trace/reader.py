"""Read a trace: one event after the other, each checked, with the line it stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.checks import EventChecks
from kvcanary_cli.trace.decode import LineDecoder, NotJsonError
from kvcanary_cli.trace.events import Event, Header, Note
from kvcanary_cli.trace.files import ByteReader, LineError, TruncatedError, open_bytes
from kvcanary_cli.trace.header_checks import check_header

SKIP_HINT = "`--skip-bad-lines` goes on without such lines"
LIST_HINT = "`kvcanary trace validate` lists all bad lines of a trace"


class TraceReader:
    """The events of a trace, lazily and in constant memory.

    Iterating gives `(line number, event)`, without the header, notes and blank lines; it goes on where an
    earlier iteration stopped. A bad line raises `InputError`, or is counted when they are skipped.

    Attributes:
        path: the name for messages: the path as it was given, or `<stdin>`.
        header: the checked header.
        bad_lines: numbers of the lines that were skipped, a truncated last line included.
        first_bad: the error of the first of them.
        truncated: number of the last line if it was cut off and skipped.
    """

    def __init__(
        self,
        path: str,
        source: ByteReader,
        *,
        skip_bad_lines: bool = False,
        on_bad: Callable[[LineError], None] | None = None,
        hint: str = SKIP_HINT,
    ) -> None:
        self.path = path
        self.bad_lines: list[int] = []
        self.first_bad: InputError | None = None
        self.truncated: int | None = None
        self._source = source
        self._skips = skip_bad_lines
        self._on_bad = on_bad
        self._hint = hint
        self._decode = LineDecoder().decode
        self.header = self._read_header()
        self._check = EventChecks(self.header).check

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        while True:
            try:
                line = next(self._source)
                event = self._event(line)
                if event is not None:
                    self._check(event, line)
            except StopIteration:
                return
            except LineError as error:
                self._bad(error)
                continue
            if event is not None:
                yield self._source.line, event

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _event(self, line: bytes) -> Event | None:
        """The event of a line; None for what readers skip."""
        if line.isspace():
            return None
        try:
            event = self._decode(line)
        except NotJsonError:
            if line.endswith(b"\n"):
                raise
            raise TruncatedError(f"the last line is truncated after {len(line)} bytes") from None
        return None if type(event) is Note else event

    def _read_header(self) -> Header:
        """The first event. Without it nothing can be read, so errors here are never skipped."""
        try:
            for line in self._source:
                event = self._event(line)
                if event is None:
                    continue
                if type(event) is not Header:
                    name = event.__struct_config__.tag
                    raise LineError(f'the first event is "{name}", the header is expected', path="$.ev")
                check_header(event)
                return event
        except LineError as error:
            raise self._placed(error) from None
        raise InputError("no header, the file has notes only", where=self.path)

    def _bad(self, error: LineError) -> None:
        """Count a bad line if they are skipped, else raise its error."""
        if not self._skips:
            error.hint = error.hint or self._hint
            raise self._placed(error) from None
        self.bad_lines.append(self._source.line)
        if isinstance(error, TruncatedError):
            self.truncated = self._source.line
        if self.first_bad is None:
            self.first_bad = self._placed(error)
        if self._on_bad is not None:
            self._on_bad(self._placed(error))

    def _placed(self, error: LineError) -> LineError:
        error.where = f"{self.path}:{self._source.line}"
        return error


def open_trace(
    path: str,
    *,
    skip_bad_lines: bool = False,
    on_bad: Callable[[LineError], None] | None = None,
    hint: str = SKIP_HINT,
) -> TraceReader:
    """Open a trace and read its header; `path` "-" is standard input, gzip and zstd are unpacked.

    `on_bad` gets the error of each line that is skipped; `hint` goes with a bad line that is not, `LIST_HINT` where
    a command can't skip any.

    Raises:
        InputError: the file can't be opened, or its header can't be used.
        MissingError: it is zstd and the zstandard package is not installed.
    """
    name, source = open_bytes(path)
    try:
        return TraceReader(name, source, skip_bad_lines=skip_bad_lines, on_bad=on_bad, hint=hint)
    except BaseException:
        source.close()
        raise
