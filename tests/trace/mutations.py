"""Damaged inputs by the thousand: one small valid file of each format, and everything that can go wrong with one.

All of it is deterministic. The rows are made up, except those of the CSV samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CSV = Path(__file__).parent / "csv_samples"


def _lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _mooncake(**more: Any) -> list[dict[str, Any]]:
    return [
        {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9], **more},
        {"timestamp": 30, "input_length": 600, "output_length": 0, "hash_ids": [0, 4], **more},
    ]


def _bailian(chat: int, parent: int, turn: int) -> dict[str, Any]:
    keys = {"chat_id": chat, "parent_chat_id": parent, "timestamp": 3.75 + chat, "input_length": 40}
    return keys | {"output_length": 9, "type": "text", "turn": turn, "hash_ids": [7, 8, 31]}


def _ragpulse(time: str) -> dict[str, Any]:
    ids = {"sys_prompt": [8302], "passages_ids": [], "history": [], "web_search": [], "user_input": [20633]}
    row = {"timestamp": time, "input_length": 530, "output_length": 20, "hash_ids": ids}
    return row | {"session_id": "s-1"}


def _weka() -> dict[str, Any]:
    request = {"t": 0.5, "type": "s", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2]}
    request |= {"input_types": ["text"], "output_types": ["text"], "stop": "end_turn"}
    agent = {"t": 1.0, "type": "subagent", "agent_id": "a", "subagent_type": "x", "duration_ms": 5}
    agent |= {"total_tokens": 135, "tool_use_count": 0, "status": "ok", "models": ["m"], "tool_tokens": 0}
    agent |= {"system_tokens": 0, "requests": [request]}
    one, two = {"input": 130, "output": 5}, {"input": 260, "output": 10}
    totals = {"parent_tokens": one, "subagent_tokens": one, "combined_tokens": two, "subagent_count": 1}
    head = {"id": "x1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0}
    return head | {"system_tokens": 10, "requests": [request, agent], "totals": totals}


def _dynamo(name: str, time: int) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": [11, 12]}
    request = {"request_id": name, "output_tokens": 3, "request_received_ms": time, "total_time_ms": 25}
    row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": time + 25}
    return row | {"agent_context": {"session_id": "p"}, "request": request | {"replay": replay}}


def _agentic(name: str, after: str | None) -> dict[str, Any]:
    needs = [{"request_id": after, "trigger": "completion", "delay_ms": 5, "relation": "r"}] if after else []
    row = {"request_id": name, "play_id": "p", "session_id": "s", "model": "m", "input_length": 20}
    return row | {"output_length": 2, "hash_ids": [1, 2], "not_before_ms": 0, "dependencies": needs}


def _lmcache(time: float) -> dict[str, Any]:
    row = {"timestamp": time, "request_id": f"r{time}", "model_name": "m", "chunk_size": 256, "seq_len": 600}
    return row | {"dtypes": ["bfloat16"], "shapes": [[2, 4, 256, 128]], "chunk_hashes": ["00a1", "00a2"]}


_AGENTIC_HEAD = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 16,
    "hash_id_scope": "local",
}
_SERVING = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 1500000, "input_tok_ids": [4, 5, 6]}
_SERVING_AGENT = {
    "session_id": "s",
    "arrival_time_ns": 2500000,
    "sub_requests": [{"input_toks": 5, "output_toks": 2, "tool_duration_ns": 9}],
}
_APPLIED = {
    "num_turns": 1,
    "input_prompt_length": 20,
    "assistant_response_length": [5],
    "tool_call_output_length": [9],
    "tool_call_latency": [0.2],
    "final_assistant_response_length": 3,
}
_TRACE = (
    {"ev": "header", "format": "kvcanary-trace", "version": 1}
    | {"pool": {"slots": 64, "page_size": 1, "rows": 5, "row_width": 32}, "groups": [{"kind": "full"}]},
    {"ev": "bind", "row": 1, "rid": "a"},
    {"ev": "truth", "rid": "a", "at": 0, "tokens": [5, 6]},
    {"ev": "alloc", "to": "a", "slots": [[1, 2]]},
    {"ev": "map", "row": 1, "at": 0, "slots": [1, 2]},
    {"ev": "forward", "rows": [1], "prefix": [0], "lens": [2], "slots": [1, 2]},
    {"ev": "gap", "forwards": 3},
)

SAMPLES: dict[str, bytes] = {
    "trace-v1": _lines(*_TRACE),
    "mooncake": _lines(*_mooncake()),
    "mooncake-delta": _lines(
        *(
            row | {"session_id": "s", "request_id": f"r{at}", "delay": 5 * at}
            for at, row in enumerate(_mooncake())
        )
    ),
    "bailian": _lines(_bailian(0, -1, 1), _bailian(5, 0, 2)),
    "llmservingsim": _lines(_SERVING | {"output_tok_ids": [7, 8]}, _SERVING_AGENT),
    "ragpulse": _lines(_ragpulse("90"), _ragpulse("95")),
    "weka": json.dumps(_weka()).encode(),
    "servegen": _lines(
        {"request_id": 0, "type": "text", "input_length": 20, "hash_ids": [0, 1], "img_ids": []},
        {"request_id": 1, "type": "text", "input_length": 30, "hash_ids": [0, 2], "img_ids": []},
    ),
    "dynamo": _lines({"event_type": "request_payload"}, _dynamo("r1", 50), _dynamo("r2", 40)),
    "dynamo-agentic": _lines(_AGENTIC_HEAD, _agentic("a", None), _agentic("b", "a")),
    "applied-compute": _lines(_APPLIED, _APPLIED),
    "lmcache-lookup": _lines(_lmcache(1700000000.5), _lmcache(1700000001)),
    "azure": (CSV / "azure-2023.csv").read_bytes(),
    "burstgpt": (CSV / "burstgpt-3.csv").read_bytes(),
    "vidur": (CSV / "vidur.csv").read_bytes(),
    "vidur-lengths": (CSV / "vidur-lengths.csv").read_bytes(),
    "splitwise-sim": (CSV / "splitwise-sim.csv").read_bytes(),
}
"""A valid file for each name of `--input-format`."""

TABLES = {
    "1_sys_prompt.jsonl": _lines({"sys_prompt_id": 8302, "token_length": 512}),
    "2_passages.jsonl": _lines({"passage_id": 0, "token_length": 100}),
    "3_history.jsonl": _lines({"history_id": 15200, "token_length": 8}),
    "4_user_input.jsonl": _lines({"user_input_id": 20633, "token_length": 10}),
    "5_web_search.jsonl": _lines({"web_search_id": 20110, "token_length": 8}),
}
"""Side tables that a RAGPulse trace needs beside it."""

VALUES = [
    *("NaN", "Infinity", "-Infinity", "1e400", "1e308", "-1e-400", "-1", "0", "1", "-0.0", "0.5", "1e3"),
    *("true", "null", '""', '"x"', '"1"', '"-5"', '"\\ud800"', '"\\u0000"', "[]", "{}", "[[1]]", '{"a": 1}'),
    *(str((1 << 31) - 1), str(1 << 31), str((1 << 53) + 1), str(1 << 63), str(1 << 64), "-9" * 9),
    *("9" * 5000, f'"{"9" * 5000}"', "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000),
    *("[1, null]", "[true]", "[-1]", "[1.5]", '["x"]', "[1, 1]", "[9, 8, 7]", "", "00", "+1", "'1'", "1_000"),
]
"""What takes the place of a JSON value, as text: most of it is none, or one of the wrong kind."""

CELLS = [
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e-400",
        "-1",
        "0",
        "0.5",
        "1e3",
        "120.0",
        "true",
        "null",
        "x",
    ),
    *(
        str(1 << 31),
        str(1 << 63),
        "9" * 5000,
        "1e999999999",
        "0x10",
        "1_000",
        "１２",
        "٣",
        "-",
        "+",
        ".",
        "1.",
    ),
    *(
        '"',
        '""',
        '"1',
        '"1"',
        '"a,b"',
        "1;2",
        "1\t2",
        "\x00",
        "\r",
        "\x85",
        "\u2028",
        "'1'",
        "é",
        "#1",
        "=1+1",
    ),
    *(
        "2023-11-16",
        "2023-11-16 18:17:03",
        "2023-11-16T18:17:03Z",
        "2023-02-30 00:00:00",
        "9999-12-31 23:59:59",
    ),
]
"""What takes the place of a CSV cell."""


def of_file(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Damage to a file as a whole, whatever its format, with a name for each."""
    for part in range(1, 24):
        yield f"cut at {part}/24", data[: len(data) * part // 24]
    yield "cut by one", data[:-1]
    yield "cut by two", data[:-2]
    lines = data.splitlines(keepends=True)
    yield "first line gone", b"".join(lines[1:])
    yield "last line twice", data + b"\n" + lines[-1]
    yield "twice", data + b"\n" + data
    yield "backwards", b"".join(reversed(lines))
    yield "blank lines", b"\n\n" + data.replace(b"\n", b"\n \n\t\n")
    yield "CRLF", data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "CR", data.replace(b"\r\n", b"\n").replace(b"\n", b"\r")
    yield "one line", data.replace(b"\n", b" ")
    yield "BOM", b"\xef\xbb\xbf" + data
    yield "BOM inside", data.replace(b"\n", b"\n\xef\xbb\xbf", 1)
    yield "UTF-16", data.decode().encode("utf-16")
    yield "UTF-32", data.decode().encode("utf-32")
    yield "array", b"[" + b",".join(lines) + b"]"
    yield "spaces", b" " * 5000 + data
    yield "capitals", data.upper()
    yield "small letters", data.lower()
    for at in (0, 1, len(lines[0]), len(data) // 2, len(data) - 1):
        for byte in (
            b"\x00",
            b"\xff",
            b"\xc3",
            b"\x1b",
            b"\x7f",
            b"{",
            b"}",
            b'"',
            b",",
            b"\n",
            b"\r",
            b"\\",
            b"9",
        ):
            yield f"{byte!r} for byte {at}", data[:at] + byte + data[at + 1 :]
            yield f"{byte!r} before byte {at}", data[:at] + byte + data[at:]
    for old, new in (
        (b":", b"="),
        (b",", b";"),
        (b",", b""),
        (b'"', b"'"),
        (b"1", b"-1"),
        (b"0", b"\xd9\xa3"),
    ):
        yield f"{old!r} to {new!r}", data.replace(old, new)


def of_json(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Damage to one value or key of a JSON file, on every line."""
    rows = [json.loads(line) for line in data.splitlines()]
    for number, row in enumerate(rows):
        for path in _paths(row):
            for value in VALUES:
                yield f"line {number + 1} {path}: {value[:20]}", _with(rows, number, path, "set", value)
            if isinstance(path[-1], str):
                for action in ("delete", "twice", "rename"):
                    yield f"line {number + 1} {path}: {action}", _with(rows, number, path, action)
    for bomb in (b"[" * 100_000, b'{"a":' * 100_000, b'{"a":[' * 50_000 + b"]}" * 50_000, b"9" * 100_000):
        yield f"bomb {bomb[:6]!r}", bomb + b"\n"
        yield f"bomb {bomb[:6]!r} at the end", data + bomb + b"\n"


def of_csv(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Damage to one cell or column of a CSV file."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    for number in range(min(3, len(rows))):
        for column in range(len(rows[0])):
            for cell in CELLS:
                changed = [list(row) for row in rows]
                changed[number][column] = cell
                yield f"line {number + 1} cell {column}: {cell[:20]!r}", _join(changed)
    for column in range(len(rows[0])):
        yield f"column {column} gone", _join([row[:column] + row[column + 1 :] for row in rows])
        yield f"column {column} twice", _join([row[: column + 1] + row[column:] for row in rows])
        yield (
            f"column {column} empty",
            _join([rows[0], *([*r[:column], "", *r[column + 1 :]] for r in rows[1:])]),
        )
        for other in range(column):
            swapped = [list(row) for row in rows]
            for row in swapped[1:]:
                row[column], row[other] = row[other], row[column]
            yield f"columns {other} and {column} swapped", _join(swapped)
    for separator in (";", "\t", "|", " ", ",,", ", "):
        yield f"separated by {separator!r}", _join(rows).replace(b",", separator.encode())
    yield "quoted", _join([[f'"{cell}"' for cell in row] for row in rows])
    yield "header twice", _join([rows[0], *rows])
    yield "long cell", _join([rows[0], ['"' + "x" * 200_000 + '"', *rows[1][1:]]])


def _join(rows: list[list[str]]) -> bytes:
    return ("\n".join(",".join(row) for row in rows) + "\n").encode()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value in a row is; of a list the first item only."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _with(rows: list[Any], number: int, path: tuple[Any, ...], action: str, text: str = "") -> bytes:
    """The rows with one place of one of them changed; `text` need not be JSON."""
    lines = [json.dumps(row) for row in rows]
    row = json.loads(lines[number])
    inner = row
    for key in path[:-1]:
        inner = inner[key]
    key = path[-1]
    if action == "delete":
        del inner[key]
    elif action == "rename":
        inner[f"{key}s"] = inner.pop(key)
    elif action == "twice":
        inner["@twice"] = inner[key]
    else:
        inner[key] = "@value"
    lines[number] = re.sub('"@value"', lambda _: text, json.dumps(row)).replace('"@twice"', json.dumps(key))
    return ("\n".join(lines) + "\n").encode()
