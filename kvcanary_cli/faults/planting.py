"""Plant faults in a trace that is held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcanary_cli.errors import UsageError, nearest
from kvcanary_cli.faults.answers import Answer
from kvcanary_cli.faults.finish import answers_of
from kvcanary_cli.faults.stream import Fault, NotApplicable, Stream
from kvcanary_cli.faults.table import FAULTS
from kvcanary_cli.kinds import KINDS, title
from kvcanary_cli.trace import events as ev

MAX_COUNT = 1000


def parse_fault(text: str) -> tuple[str, int]:
    """Kind and count of `K07`, `K07:4` or `late-remote-write:4`.

    Raises: UsageError for a kind that is not known, or a count that is no number from 1 to 1000.
    """
    word, separator, number = text.replace("=", ":", 1).partition(":")
    code = _code(word.strip())
    if not separator:
        return code, 1
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= MAX_COUNT):
        raise UsageError(
            f"fault `{text}` asks for `{number}` places, a number from 1 to {MAX_COUNT:,} is needed",
            hint=f"`--fault {code}:2`",
        )
    return code, int(number)


def _code(word: str) -> str:
    names = {name: code for code, name in KINDS.items()}
    code = word.upper()
    if code in KINDS:
        return code
    if word.lower() in names:
        return names[word.lower()]
    # `K7` is K07; of other codes none is nearer than another
    padded = f"{code[:1]}{code[1:].zfill(2)}"
    close = padded if padded in KINDS else names.get(nearest(word.lower(), names) or "")
    raise UsageError(
        f"fault `{word}` is not known" + (f", did you mean `{title(close)}`?" if close else ""),
        hint="kinds are K01 to K26 and C1 to C7, `kvcanary explain` lists them",
    )


def plant(
    header: ev.Header, events: Iterable[ev.Event], kind: str, seed: int, *, count: int = 1
) -> tuple[ev.Header, list[ev.Event], list[Answer]]:
    """Plant `count` faults of one kind; the same arguments give the same events and answers.

    Args:
        header, events: the trace, without its header among the events.
        kind: a code of `KINDS`.

    Returns: header and events with the faults, and an answer for each fault, in order of its step.

    Raises: NotApplicable where the trace has no (further) place for this kind.
    """
    return plant_all(header, events, [(kind, count)], seed)


def plant_all(
    header: ev.Header, events: Iterable[ev.Event], wanted: Sequence[tuple[str, int]], seed: int
) -> tuple[ev.Header, list[ev.Event], list[Answer]]:
    """Plant faults of several kinds, each away from the others; see `plant`."""
    stream = Stream(header, events)
    faults: list[Fault] = []
    for kind, count in wanted:
        for number in range(count):
            faults.append(plant_one(stream, kind, f"{seed}/{kind}/{number}"))
    answers = answers_of(stream.header, stream.cells, faults)
    answers.sort(key=lambda answer: (answer.step, answer.kind, answer.slots))
    return stream.header, stream.events(), answers


def plant_one(stream: Stream, kind: str, seed: str) -> Fault:
    """Plant one fault and commit it.

    Raises: NotApplicable; the stream is of no use then.
    """
    entry = FAULTS[kind]
    planter = entry.start(stream, seed)
    try:
        next(planter)
        next(planter)
    except StopIteration as done:
        fault: Fault = done.value
    except NotApplicable as error:
        raise entry.no_place(error) from None
    fault.kind = kind
    stream.commit()
    stream.avoid(fault)
    return fault


def dress(
    header: ev.Header, events: Iterable[ev.Event], kind: str, seed: int
) -> tuple[ev.Header, list[ev.Event]]:
    """What `plant` with these arguments would damage, before the damage: a trace that must replay clean."""
    stream = Stream(header, events)
    entry = FAULTS[kind]
    planter = entry.start(stream, f"{seed}/{kind}/0")
    try:
        next(planter)
    except NotApplicable as error:
        raise entry.no_place(error) from None
    stream.commit()
    return stream.header, stream.events()
