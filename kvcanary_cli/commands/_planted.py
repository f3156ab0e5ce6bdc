"""What `plant` and `synth --fault` share: the answer sheet's name, and writing both files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING

from kvcanary_cli.commands._options import check_output
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:  # both cost --help a quarter of a second
    from kvcanary_cli.faults.answers import Answer
    from kvcanary_cli.trace.events import Event, Header

PACKED = (".gz", ".zst")


def answers_path(output: str, answers: str | None) -> str | None:
    """Where the answer sheet goes: as given, else beside the trace; None for a trace on stdout.

    Raises: UsageError for a sheet on stdout or in the trace's place, InputError for a place that can't be written.
    """
    if answers is None:
        if output == "-":
            return None
        path = PurePath(output)
        path = path.with_suffix("") if path.suffix in PACKED and path.stem else path
        answers = str(path.with_suffix(".faults.json"))
    if answers in ("-", output):
        place = "stdout" if answers == "-" else answers
        raise UsageError(f"the answer sheet can't go to {place}, it needs a file of its own")
    check_output(answers, flag="--answers")
    return answers


def write_planted(
    output: str,
    answers: str | None,
    header: Header,
    events: Iterable[Event],
    faults: list[Answer],
    *,
    seed: int,
) -> int:
    """Write the trace and, where it has a place, the answer sheet; how many lines the trace has."""
    from kvcanary_cli.faults.answers import write_answers
    from kvcanary_cli.trace.writer import TraceWriter

    with TraceWriter(output, header) as writer:
        for event in events:
            writer.write(event)
    if answers is not None:
        write_answers(answers, faults, seed=seed)
    return writer.num_lines
