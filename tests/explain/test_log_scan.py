"""Messages in logs: decoration, broken lines, block borders, source code, grouping, files."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.explain import grouping
from kvcanary_cli.explain.families import templates
from kvcanary_cli.explain.grouping import collect
from kvcanary_cli.explain.log_scan import BLOCK_BYTES, JOIN_TRIES, has_prefix, is_prose, scan_file, scan_text
from kvcanary_cli.kernels import messages
from tests.explain.server_lines import CASES, violation

LANES = messages.plan_lanes(600, 512)


def scan(tmp_path, data: bytes | str):
    path = tmp_path / "server.log"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    result = scan_file(str(path))
    return list(result.hits), result


@pytest.mark.parametrize(
    "decorate",
    [
        lambda text: text,
        lambda text: f"[2026-11-30 17:20:00 TP0] {text}",
        lambda text: f"RuntimeError: {text}\r",
        lambda text: f"\x1b[31m[2026-11-30 17:20:00 DP1 TP3]\x1b[0m ValueError: \x1b[1m{text}\x1b[0m",
        lambda text: text.replace("kv-canary:", "\x1b[36mkv-canary\x1b[0m:").replace("=", "=\x1b[36m"),
        lambda text: f"2026-11-30T17:20:00.123Z stderr F Traceback: ValueError('{text}')",
        lambda text: json.dumps({"log": f"\x1b[31m{text}\x1b[0m\n", "stream": "stderr"}),
    ],
    ids=["plain", "time", "exception", "colours", "coloured-numbers", "container", "json"],
)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.family != "broken-rule"])
def test_decorated_lines(tmp_path, decorate, name):
    case = CASES[name]
    hits, result = scan(tmp_path, f"INFO: started\n{decorate(case.text)}\nINFO: ready\n")
    (hit,) = hits
    assert hit.message is not None
    assert (hit.line, hit.message.family, hit.message.numbers) == (2, case.family, case.numbers)
    assert result.lines == [3]


def broken_at(text: str, width: int) -> str:
    """A message as a terminal of some width breaks it."""
    body = text.removeprefix("kv-canary: ")
    return "kv-canary: " + "\n".join(body[i : i + width] for i in range(0, len(body), width))


def is_readable(broken: str) -> bool:
    """Whether no number is cut in two, which looks like a shorter number, and the lines are few."""
    parts = broken.split("\n")
    cuts = itertools.pairwise(parts)
    return len(parts) <= 4 and not any(left[-1].isdigit() and right[0].isdigit() for left, right in cuts)


BROKEN = {
    f"{name}-{width}": (broken, case)
    for name, case in CASES.items()
    for width in (21, 33, 40, 60, 80)
    if case.family in templates() and is_readable(broken := broken_at(case.text, width))
}


@pytest.mark.parametrize("name", BROKEN)
def test_lines_broken_by_a_terminal(name):
    broken, case = BROKEN[name]
    (hit,) = scan_text(broken)
    assert hit.message is not None
    assert (hit.message.family, hit.message.numbers) == (case.family, case.numbers)
    assert hit.message.words.get("flag") == case.words.get("flag")


def test_breaks_were_tried_in_most_messages():
    assert {case.family for _, case in BROKEN.values()} == set(templates())


@pytest.mark.parametrize(
    "line",
    [
        '    raise ValueError(f"kv-canary: bs={bs} exceeds write_req_capacity={write_req_capacity}")',
        '    raise ValueError("kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when")',
        '        f"kv-canary: {name} must be contiguous"',
        "        'kv-canary: WritePlan write_req_capacity must be positive, '",
        "python -m sglang.launch_server --kv-canary raise",
        "ServerArgs(kv_canary='log', kv_canary_real_data='none')",
        '  File "/sglang/srt/kv_canary/plan_input.py", line 40, in build',
    ],
)
def test_lines_that_are_no_messages(tmp_path, line):
    hits, _ = scan(tmp_path, f"{line}\n")
    assert hits == []


def test_a_traceback_is_one_message(tmp_path):
    text = (
        "Traceback (most recent call last):\n"
        '  File "/sglang/srt/kv_canary/plan/offsets_kernel.py", line 40, in launch\n'
        '    raise ValueError(f"kv-canary: bs={bs} exceeds write_req_capacity={capacity}")\n'
        f"ValueError: {LANES}\n"
    )
    hits, _ = scan(tmp_path, text)
    assert [(hit.line, hit.text) for hit in hits] == [(4, LANES)]


@pytest.mark.parametrize("shift", [*range(-60, 61, 7), *range(-2056, -2040), 2048])
def test_a_message_across_the_border_of_two_blocks(tmp_path, shift):
    filler = b"x" * 99 + b"\n"
    before = filler * ((BLOCK_BYTES + shift) // 100)
    before += b"y" * (BLOCK_BYTES + shift - len(before) - 1) + b"\n"
    data = before + LANES.encode() + b"\n" + filler * 30 + violation().encode()
    hits, result = scan(tmp_path, data)
    lines = before.count(b"\n")
    assert [hit.line for hit in hits] == [lines + 1, lines + 32]
    assert result.lines == [lines + 32]


def test_every_message_once_over_many_blocks(tmp_path):
    line = f"[2026-11-30 17:20:00 TP0] {LANES}\n"
    times = 3 * BLOCK_BYTES // len(line)
    hits, _ = scan(tmp_path, line * times)
    assert [hit.line for hit in hits] == list(range(1, times + 1))


def test_lines_without_end_and_bytes_that_are_no_text(tmp_path):
    hits, result = scan(tmp_path, b"\xff\xfe" * 2_000_000 + LANES.encode())
    assert [(hit.line, hit.text) for hit in hits] == [(1, LANES)]
    assert result.lines == [1]


def test_an_empty_log(tmp_path):
    hits, result = scan(tmp_path, b"")
    assert (hits, result.lines, result.others) == ([], [0], [])


def test_a_packed_log(tmp_path):
    hits, result = scan(tmp_path, gzip.compress(f"INFO\n{LANES}\n".encode()))
    assert [hit.line for hit in hits] == [2]
    assert result.lines == [2]


def test_a_packed_log_that_was_cut(tmp_path):
    packed = gzip.compress(b"".join(str(i).encode() for i in range(100_000)))
    with pytest.raises(InputError, match="the file can't be read"):
        scan(tmp_path, packed[:5000])


@pytest.mark.parametrize(("name", "reason"), [("none.log", "no such file"), (".", "can't be read")])
def test_files_that_can_not_be_read(tmp_path, name, reason):
    with pytest.raises(InputError, match=reason):
        list(scan_file(str(tmp_path / name)).hits)


def test_lines_that_name_a_canary_are_kept_for_the_nearest_message(tmp_path):
    hits, result = scan(tmp_path, "one\nthe canary says 5\n" + "canary\n" * 100)
    assert hits == []
    assert result.others[0] == "the canary says 5"
    assert len(result.others) == 20


def test_lines_are_joined_again_after_a_success_and_not_for_ever(tmp_path):
    broken = "kv-canary: bs=600 exceeds\nwrite_req_capacity=512\n"
    odd = "kv-canary: all is well\n"
    assert sum(hit.message is not None for hit in scan(tmp_path, odd * 10 + broken + odd * 10)[0]) == 1
    assert sum(hit.message is not None for hit in scan(tmp_path, odd * (JOIN_TRIES + 1) + broken)[0]) == 0
    again = odd * (JOIN_TRIES - 1) + broken
    assert sum(hit.message is not None for hit in scan(tmp_path, again * 2)[0]) == 2


def test_messages_are_grouped_by_room_and_the_largest_need_counts():
    lines = [
        *(messages.write_entry(tokens, 8192) for tokens in (9000, 20_000, 10_000)),
        messages.write_entry(30_000, 16_384),
        LANES,
        violation(slot=5),
        violation(slot=6, reason="chain_hash"),
        violation("TAIL_K_FULL"),
        "kv-canary: step 4 is odd",
        "kv-canary: step 5 is odd",
    ]
    found = collect(scan_text("\n".join(lines)))
    counted = [
        (g.match.family, g.match.numbers.get("tokens"), g.count, g.first, g.last) for g in found.messages
    ]
    assert counted == [
        ("write-entries", 20_000, 3, 1, 3),
        ("write-entries", 30_000, 1, 4, 4),
        ("plan-lanes", None, 1, 5, 5),
    ]
    assert [(g.example.launch, g.count, sorted(g.slots)) for g in found.violations] == [
        ("HEAD_K_FULL", 2, [5, 6]),
        ("TAIL_K_FULL", 1, [4711]),
    ]
    assert [(g.text, g.count, g.first, g.last) for g in found.unknown] == [
        ("kv-canary: step 4 is odd", 2, 9, 10)
    ]


def test_groups_are_bounded(monkeypatch):
    monkeypatch.setattr(grouping, "MAX_GROUPS", 3)
    lines = [messages.not_contiguous(f"t{i}") for i in range(5)]
    lines += [violation(reason=f"r{i}") for i in range(4)]
    lines += [f"kv-canary: {'x' * i} is odd" for i in range(1, 6)]
    found = collect(scan_text("\n".join(lines)))
    assert [len(found.messages), len(found.violations), len(found.unknown)] == [3, 3, 3]
    assert found.left_out == 2 + 1 + 2


@pytest.mark.parametrize(
    ("words", "prefix", "prose"),
    [
        ("K07", False, False),
        ("K07 late-remote-write", False, False),
        ("late-remot-write", False, False),
        ("bs=600", False, True),
        ("the server says this now", False, True),
        (LANES, True, True),
        ("kv-canary", False, False),
    ],
)
def test_a_text_and_a_mistyped_code(words, prefix, prose):
    assert (has_prefix(words), is_prose(words)) == (prefix, prose)
