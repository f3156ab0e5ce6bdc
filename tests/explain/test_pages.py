"""Every finding has a page, every page has all its parts, and every example is true."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from kvcanary_cli.capacity.rules import RULES as CAPACITY_RULES
from kvcanary_cli.errors import UsageError
from kvcanary_cli.explain.document import HEADER, document
from kvcanary_cli.explain.index import GROUPS, codes, look_up
from kvcanary_cli.explain.pages import HEADINGS, PAGES, load, parse
from kvcanary_cli.kernels.consts import BIT_NAMES, bit_names
from kvcanary_cli.kinds import KINDS as TRACE_KINDS
from kvcanary_cli.kinds import STREAM_KINDS
from kvcanary_cli.ledger.judged import NEEDS
from kvcanary_cli.main import COMMANDS
from kvcanary_cli.replay.capacities import Limits
from kvcanary_cli.replay.diagnose import UNKNOWN
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.rules import RULES
from kvcanary_cli.replay.run import ReplayResult, run_replay
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.trace.reader import open_trace
from tests.cli import ROOT, call

KINDS = TRACE_KINDS | STREAM_KINDS
CPU = DeviceChoice(kind="cpu", index=0, name="cpu", reason="")
CODES = codes()
WITH_TRACE = [code for code in CODES if any(b.kind == "json" for b in load(code).sections["example"])]
WITH_CONSOLE = [code for code in CODES if any(b.kind == "console" for b in load(code).sections["example"])]


def everything_that_needs_a_page() -> set[str]:
    capacity_ids = {rule.id for rule in CAPACITY_RULES}
    return {*KINDS, *RULES, *BIT_NAMES.values(), UNKNOWN, *capacity_ids}


def test_every_kind_check_and_rule_has_a_page_and_no_page_is_left_over():
    assert sorted(CODES) == sorted(everything_that_needs_a_page())
    assert {path.stem for path in PAGES.iterdir()} == set(CODES)


def ledger_rules() -> set[str]:
    """Every rule that the ledger can report, read from its source; `partial` and `missing_sources` build theirs."""
    found = {f"{what}-{part}" for what in ("xfer", "reload") for part in ("partial", "missing-sources")}
    for path in (ROOT / "kvcanary_cli" / "ledger" / "rules").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("state.log.add", "_add")
            if is_call:
                found |= {
                    a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                }
    return found


def test_every_ledger_rule_leads_to_a_page():
    named = {rule for code in CODES for rule in load(code).rules}
    assert len(ledger_rules()) > 30
    assert ledger_rules() - named == set()
    assert set(NEEDS) - named == set()


@pytest.mark.parametrize("code", CODES)
def test_a_page_has_all_its_parts(code):
    page = load(code)
    assert (page.code, page.name) == (code, KINDS.get(code, code))
    assert list(page.sections) == list(HEADINGS)
    assert all(page.sections.values())
    assert page.commands
    assert page.summary
    assert not page.summary.endswith(".")
    text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    assert text.isascii()
    prose = [b for blocks in page.sections.values() for b in blocks if not b.is_code]
    assert [b.text for b in prose if b.text[-1] not in ".:)"] == []


@pytest.mark.parametrize("code", CODES)
def test_kinds_that_a_page_mentions_exist_and_have_their_name(code):
    text = (PAGES / f"{code}.md").read_text(encoding="utf-8")
    mentioned = re.findall(r"\b(K\d\d|C\d|S\d\d)(?: ([a-z]+(?:-[a-z]+)+))?", text)
    assert [kind for kind, _ in mentioned if kind not in KINDS] == []
    mentioned += re.findall(r"^- (K\d\d|C\d|S\d\d) ([a-z-]+):", text, re.MULTILINE)
    assert [(kind, name) for kind, name in mentioned if name and KINDS[kind] != name] == []


@pytest.mark.parametrize("command", sorted({c for code in CODES for c in load(code).commands}))
def test_commands_exist_with_their_flags(capsys, command):
    words = shlex.split(command)
    own = words[: words.index("--")] if "--" in words else words
    assert own[0] == "kvcanary"
    assert own[1] in COMMANDS
    flags = {word for word in own if word.startswith("--")}
    assert flags <= set(re.findall(r"--[a-z-]+", call(capsys, own[1], "--help").out))
    if own[1] == "explain":
        assert look_up(own[2]).pages


def server_flags() -> set[str]:
    table = (ROOT / "kvcanary_cli" / "capacity" / "data" / "flags.tsv").read_text(encoding="utf-8")
    return set(re.findall(r"--[a-z0-9-]+", table))


OURS_AND_VLLM = {
    "--capacities",
    "--hash",
    "--incident",
    "--limit-steps",
    "--no-tokens",
    "--ring",
    "--shadows",
}
OURS_AND_VLLM |= {"--stop-on-violation", "--sweep-interval", "--sglang-version", "--async-scheduling"}
OURS_AND_VLLM |= {
    "--replay",
    "--block-size",
    "--no-enable-prefix-caching",
    "--from-log",
    "--pool-tokens",
    "--workload",
}


@pytest.mark.parametrize("code", CODES)
def test_flags_in_the_prose_exist(code):
    prose = [b.text for blocks in load(code).sections.values() for b in blocks if not b.is_code]
    flags = set(re.findall(r"(?<![\w-])--[a-z0-9-]+", " ".join(prose)))
    assert flags - server_flags() - OURS_AND_VLLM == set()


def replay_example(code: str, path) -> ReplayResult:
    (lines,) = [b.text for b in load(code).sections["example"] if b.kind == "json"]
    text = lines if '"ev":"header"' in lines else f"{HEADER}\n{lines}"
    path.write_text(text + "\n", encoding="ascii")
    with open_trace(str(path)) as reader:
        stated = reader.header.capacities
        names = ("write_req_capacity", "write_entry_capacity", "verify_capacity")
        limits = Limits(**{name: getattr(stated, name) for name in names}) if stated is not None else Limits()
        options = ReplayOptions(device=CPU, limits=limits)
        return run_replay(reader.header, iter(reader), options, path="example.jsonl")


def finding_sentence(result: ReplayResult) -> str:
    kinds = [f"{i.kind} ({i.strength.name.lower()})" for i in result.incidents]
    kinds += [violation.kind for violation in result.capacity_violations]
    rules = dict.fromkeys(f"`{b.rule}`" for i in result.incidents for b in i.breaches)
    bits = sorted({f"`{bit}`" for v in result.stories.kept for bit in bit_names(v.bits)})
    ledger, checks = ", ".join(rules) or "no breach", ", ".join(bits) or "none"
    return f"Replay finds {', '.join(kinds)}; ledger: {ledger}; failed checks: {checks}."


@pytest.mark.parametrize("code", WITH_TRACE)
def test_a_replay_of_the_example_finds_what_the_page_says(code, tmp_path):
    result = replay_example(code, tmp_path / "example.jsonl")
    assert load(code).sections["example"][-1].text == finding_sentence(result)
    found = {i.kind for i in result.incidents} | {v.kind for v in result.capacity_violations}
    if code in BIT_NAMES.values():
        assert any(code in bit_names(v.bits) for v in result.stories.kept)
    else:
        assert code in found


FILES = {"yaml": "config.yaml", "jsonl": "trace.jsonl", "log": "server.log"}
"""Names under which an example's files stand beside its command, by the language of the block."""


@pytest.mark.parametrize("code", WITH_CONSOLE)
def test_the_command_of_an_example_prints_what_the_page_says(capsys, monkeypatch, tmp_path, code):
    example = load(code).sections["example"]
    for block in example:
        if block.kind in FILES:
            (tmp_path / FILES[block.kind]).write_text(block.text + "\n", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    (block,) = [b.text for b in example if b.kind == "console"]
    command, *shown = block.replace("\\\n", " ").split("\n")
    done = call(capsys, *shlex.split(command.removeprefix("$ kvcanary ")))
    printed = [line for line in done.out.split("\n") if line in shown]
    assert printed == shown
    assert shown


def test_every_page_has_an_example_that_was_run():
    assert sorted(WITH_TRACE + WITH_CONSOLE) == sorted(CODES)


def test_a_page_with_a_heading_missing_is_refused():
    text = (PAGES / "K07.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="K07 has the headings"):
        parse(text.replace("## Example\n", ""))


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("K07", ["K07"]),
        ("k07", ["K07"]),
        ("Late-Remote-Write", ["K07"]),
        ("K07 late-remote-write", ["K07"]),
        ("c4", ["C4"]),
        ("CHAIN_HASH", ["chain_hash"]),
        ("chain-hash", ["chain_hash"]),
        ("entry-chunk", ["entry-chunk"]),
        ("unknown-cause", ["unknown"]),
        ("alloc-held", ["K01"]),
        ("free-unheld", ["K02", "K04"]),
        ("position-drift", ["K17"]),
    ],
)
def test_a_word_leads_to_its_pages(word, found):
    assert [page.code for page in look_up(word).pages] == found


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("late-remot-write", "`kvcanary explain late-remote-write`"),
        ("K077", "`kvcanary explain K07`"),
        ("verify-tokens", "`kvcanary explain verify_token`"),
        ("alloc-hold", "`kvcanary explain alloc-held`"),
        ("zzz", "`kvcanary explain` lists all codes"),
    ],
)
def test_an_unknown_word_names_the_nearest(word, hint):
    with pytest.raises(UsageError) as caught:
        look_up(word)
    assert caught.value.message == f"`{word}` is no code, name or ledger rule that kvcanary knows"
    assert caught.value.hint == hint


def test_the_page_of_the_docs_is_current_and_names_every_code():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert text == document()
    assert [code for code in CODES if f"[{code}](" not in text] == []
    assert [name for name in KINDS.values() if name not in text] == []


def test_groups_name_no_code_twice():
    listed = [code for group in GROUPS.values() for code in group]
    assert len(listed) == len(set(listed))
