"""Read a whole trace as a replay would, without running it: every line that can't be used, and what the rest holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvcanary_cli.errors import InputError
from kvcanary_cli.ledger.judged import unjudged_rules
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.reader import TraceReader, open_trace
from kvcanary_cli.trace_tools.order import OrderChecks

MAX_LISTED = 100
"""Bad lines, and remarks, that are listed one by one; the others are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One line and what is wrong with it; `line` is None where the file as a whole is meant."""

    line: int | None
    message: str
    path: str | None = None
    hint: str | None = None


@dataclass(kw_only=True, slots=True)
class FileCheck:
    """What one file holds, and what is wrong with it.

    Attributes:
        name: for messages.
        header: None where it can't be used, and then no line behind it was looked at.
        lines: number of the last line that holds an event.
        kinds: events by name, the header included.
        problems: bad lines, at most `MAX_LISTED`; `num_problems` counts all.
        remarks: what replay accepts but a recorder hardly means, likewise.
        truncated: line in which the file ends, if it ends inside one.
        first_t, last_t: seconds, None where no event has a time.
        tokens: tokens that the forwards write.
        has: further facts that decide what a replay can check.
    """

    name: str
    header: ev.Header | None = None
    lines: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0
    remarks: list[Problem] = field(default_factory=list)
    num_remarks: int = 0
    truncated: int | None = None
    first_t: float | None = None
    last_t: float | None = None
    tokens: int = 0
    requests: set[str] = field(default_factory=set)
    pending_transfers: list[str] = field(default_factory=list)
    has: set[str] = field(default_factory=set)

    def add_problem(self, problem: Problem) -> None:
        """Count a bad line, and keep it while there is room."""
        self.num_problems += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)

    def add_remark(self, line: int | None, message: str) -> None:
        """Count a remark, and keep it while there is room."""
        self.num_remarks += 1
        if len(self.remarks) < MAX_LISTED:
            self.remarks.append(Problem(line=line, message=message))


def validate_file(path: str) -> FileCheck:
    """Check one file; what is wrong with it is in the result and never raised."""
    check = FileCheck(name=path)

    def note(error: LineError) -> None:
        line = int((error.where or "0").rpartition(":")[2] or 0)
        check.add_problem(Problem(line=line, message=error.message, path=error.path, hint=error.hint))

    try:
        with open_trace(path, skip_bad_lines=True, on_bad=note) as reader:
            check.name, check.header = reader.path, reader.header
            _read(reader, check)
            check.truncated = reader.truncated
    except InputError as error:
        check.add_problem(_of_error(error))
    return check


def _of_error(error: InputError) -> Problem:
    where, _, number = (error.where or "").rpartition(":")
    line = int(number) if where and number.isdigit() else None
    return Problem(line=line, message=error.message, path=error.path, hint=error.hint)


def _read(reader: TraceReader, check: FileCheck) -> None:
    check.kinds["header"] = 1
    line = 0
    order = OrderChecks(reader.header, lambda text: check.add_remark(line, text))
    for line, event in reader:
        check.lines = line
        _count(check, event)
        try:
            order.check(event)
        except LineError as error:
            check.add_problem(Problem(line=line, message=error.message, path=error.path, hint=error.hint))
    check.pending_transfers = order.pending_transfers


def _count(check: FileCheck, event: ev.Event) -> None:
    check.kinds[event.__struct_config__.tag] += 1  # type: ignore[index]
    t = event.t  # type: ignore[union-attr]
    if t is not None:
        check.first_t = t if check.first_t is None else check.first_t
        check.last_t = t
    if isinstance(event, ev.Forward):
        check.tokens += sum(event.lens) if event.lens is not None else len(event.rows)
        check.has.update(key for key in ("expect", "tokens", "slots") if getattr(event, key) is not None)
    elif isinstance(event, ev.Bind):
        check.requests.add(event.rid)


def not_checkable(check: FileCheck) -> list[tuple[str, str]]:
    """What a replay of this file could not check, each with the reason."""
    header = check.header
    if header is None:
        return []
    found = []
    if not header.sources:
        found.append(("real_kv_hash", "the header declares no byte sources"))
    elif not any(source.hashed_bytes for source in header.sources):
        found.append(("real_kv_hash", "no byte source is hashed"))
    if not check.kinds["truth"]:
        found.append(("verify_token", "the trace has no `truth` events"))
    if "expect" not in check.has:
        found.append(("write_token", "no forward has `expect`"))
    if not check.kinds["sweep"]:
        found.append(("sweeps", "the trace has no `sweep` events; `--sweep-interval` makes some"))
    if header.capacities is None:
        found.append(("capacities", "the header states none; `--capacities` gives them"))
    if header.state == "unknown" or header.continues is not None:
        found.append(("history", "the recording began in a running engine: what was there is unknown"))
    if check.kinds["gap"]:
        found.append(("gaps", f"the recording has {check.kinds['gap']}: what they hide stays unjudged"))
    return found + _unjudged(header)


def _unjudged(header: ev.Header) -> list[tuple[str, str]]:
    return [
        (rule, "the recorder does not see " + ", ".join(f"`{kind}`" for kind in kinds))
        for rule, kinds in unjudged_rules(header).items()
    ]


def check_parts(checks: Iterable[FileCheck]) -> list[Problem]:
    """What is wrong with the parts of rotated recordings that were given together."""
    parts: dict[str, dict[int, FileCheck]] = {}
    problems = []
    for check in checks:
        continues = check.header.continues if check.header is not None else None
        if continues is None:
            continue
        known = parts.setdefault(continues.of, {})
        if continues.part in known:
            problems.append(_part(f"part {continues.part} of {continues.of!r} is there twice", check))
        known.setdefault(continues.part, check)
    for run, known in sorted(parts.items()):
        numbers = sorted(known)
        lacking = sorted(set(range(1, numbers[-1] + 1)) - set(numbers))
        if lacking:
            words = ", ".join(str(number) for number in lacking)
            problems.append(_part(f"of {run!r} part {words} is missing", known[numbers[-1]]))
        first = known[numbers[0]].header
        for number in numbers[1:]:
            if first is not None and not _fits(first, known[number].header):
                problems.append(
                    _part(
                        f"part {number} of {run!r} has other sizes or sources than part {numbers[0]}",
                        known[number],
                    )
                )
    return problems


def _part(message: str, check: FileCheck) -> Problem:
    return Problem(line=None, message=f"{check.name}: {message}")


def _fits(one: ev.Header, other: ev.Header | None) -> bool:
    keys = ("pool", "groups", "sources", "token_position_offset")
    return other is not None and all(getattr(one, key) == getattr(other, key) for key in keys)
