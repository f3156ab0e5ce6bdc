"""What a report says of a request trace that it read: block size, and what was unusual in the file."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.report.text import count, plural

# facts about a file, each with the words for its rows
_FACTS = {
    "reordered": "earlier than the row before, sorted",
    "simultaneous": "at the time of the row before",
    "moved_ids": "at two places, so ids name content and not prefixes",
}


def request_file_lines(details: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, text) of the file's facts; empty for a trace v1.

    Args:
        details: as `sim.run.file_details` makes them.
    """
    lines = []
    if details.get("block_size") is not None:
        lines.append(
            ("blocks", f"{plural(details['block_size'], 'token')} an id, says {details['block_size_from']}")
        )
    for key, words in _FACTS.items():
        if details.get(key):
            what = "block id" if key == "moved_ids" else "row"
            lines.append(("note", f"{plural(details[key], what)} {words}"))
    for note in details.get("notes", ()):
        where = f" (first: line {count(note['line'])})" if note["line"] is not None else ""
        times = f"{plural(note['count'], 'row')}: " if note["line"] is not None else ""
        lines.append(("note", f"{times}{note['text']}{where}"))
    unknown = details.get("unknown_keys") or {}
    if unknown:
        named = ", ".join(f"{key} ({count(times)})" for key, times in sorted(unknown.items())[:8])
        more = f", {count(len(unknown) - 8)} more" if len(unknown) > 8 else ""
        lines.append(("note", f"keys that are not used, with their rows: {named}{more}"))
    return lines
