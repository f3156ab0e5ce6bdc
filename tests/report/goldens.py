"""What `kvcanary replay` prints for the traces in `made.py`, word for word; run as a module to write it anew.

python -m tests.report.goldens
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcanary_cli.trace import events as ev
from tests.report import made

GOLDEN = Path(__file__).parent / "golden"

ANSWERS = {
    "version": 1,
    "seed": 0,
    "faults": [
        {"kind": "K07", "slots": [[24, 27]], "rid": "C", "writer": "B", "step": 3, "found_by_step": 4},
        {"kind": "K01", "slots": [[12, 13]], "rid": "A", "writer": "D", "step": 7, "found_by_step": 8},
        {"kind": "K21", "slots": [[10, 10]], "rid": "A", "step": 8, "found_by_step": 9},
    ],
}


@dataclass(frozen=True)
class Case:
    """One golden: a trace, flags, and the exit code."""

    trace: str
    flags: tuple[str, ...] = ()
    code: int = 1
    with_json: bool = False


CASES = {
    "clean": Case("clean", code=0, with_json=True),
    "clean-verbose": Case("clean", ("-v", "--limit-steps", "3"), code=0),
    "no-truth": Case("no-truth", code=0),
    "required": Case("no-truth", ("--require", "verify_token"), code=4),
    "damaged": Case("damaged", with_json=True),
    "slots": Case("damaged", ("--slots", "--shadows", "--heatmap")),
    "incident-1": Case("damaged", ("--incident", "1")),
    "incident-2": Case("damaged", ("--incident", "2", "--slot", "13")),
    "incident-3": Case("damaged", ("--incident", "3", "--no-tokens")),
    "no-slot": Case("occupied", ("--incident", "1")),
    "history": Case("damaged", ("--slot", "24", "--history")),
    "expect": Case("damaged", ("--expect", "answers.json"), code=0),
    "incomplete": Case("cut", ("--skip-bad-lines",), code=4, with_json=True),
    "capacities": Case("small-server"),
    "github": Case("damaged", ("--format", "github", "--quiet")),
}


def write_traces(folder: Path) -> None:
    """All traces, and the answer sheet, into a folder."""
    made.write(folder / "clean.jsonl", made.clean())
    no_truth = [event for event in made.clean() if not isinstance(event, ev.Truth)]
    made.write(folder / "no-truth.jsonl", no_truth)
    made.write(folder / "damaged.jsonl", made.damaged())
    made.write(folder / "occupied.jsonl", made.occupied())
    limits = ev.Capacities(write_req_capacity=4, write_entry_capacity=4, verify_capacity=8)
    made.write(folder / "small-server.jsonl", made.clean(), capacities=limits)
    whole = (folder / "clean.jsonl").read_bytes()
    (folder / "cut.jsonl").write_bytes(whole[: whole.rindex(b'{"ev":"forward"') + 30])
    (folder / "answers.json").write_text(json.dumps(ANSWERS))


def command(case: Case, *more: str) -> list[str]:
    """The command line, to be run in the folder of the traces."""
    return ["replay", f"{case.trace}.jsonl", "--device", "cpu", *case.flags, *more]


def stable(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what depends on the machine: times and versions."""
    return report | {"timing": {"seconds": 0.0}, "tool": dict.fromkeys(report["tool"], "VERSION")}


def _rewrite() -> None:
    import contextlib
    import io
    import os
    import tempfile

    os.environ.update(COLUMNS="80", NO_COLOR="1", TERM="dumb")
    from kvcanary_cli.main import run

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_traces(Path(folder))
        for name, case in CASES.items():
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                run(command(case))
            (GOLDEN / f"{name}.txt").write_text(mask(out.getvalue()))
            if case.with_json:
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    run(command(case, "--format", "json"))
                text = json.dumps(stable(json.loads(out.getvalue())), indent=1)
                (GOLDEN / f"{name}.json").write_text(text + "\n")


def mask(text: str) -> str:
    """Versions that `-v` prints, masked."""
    lines = text.splitlines()
    words = ("  numba ", "  version ")
    return "\n".join(line[:13] + "VERSION" if line.startswith(words) else line for line in lines) + "\n"


if __name__ == "__main__":
    _rewrite()
