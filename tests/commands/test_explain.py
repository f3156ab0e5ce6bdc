"""`explain`: text, JSON, list, errors, and what it loads."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kvcanary_cli.explain.index import GROUPS, codes
from kvcanary_cli.explain.pages import HEADINGS, load
from kvcanary_cli.report.explain import render_explain
from tests.cli import ROOT, call, imported_by, spawn_without

HEAVY = {"numpy", "numba", "torch", "triton"}


def test_a_page_begins_and_ends_as_all_reports_do(capsys):
    done = call(capsys, "explain", "k07")
    lines = done.out.split("\n")
    assert (done.code, done.err) == (0, "")
    assert lines[:5] == [
        "explain   K07 late-remote-write",
        "          a transfer lands after its destination changed hands",
        "          ledger rules: xfer-to-old-epoch",
        "",
        "What it is",
    ]
    assert "  - K22 torn-transfer: the right destination, but only a part arrived." in lines
    assert lines[-6:] == [
        "",
        "next:   kvcanary replay TRACE --incident N",
        "        kvcanary replay TRACE --slot N --history",
        "",
        "kvcanary: PASS explain code=K07 exit=0",
        "",
    ]


@pytest.mark.parametrize("code", codes())
def test_headings_come_in_the_one_order(capsys, code):
    lines = call(capsys, "explain", code).out.split("\n")
    assert [line for line in lines if line in HEADINGS.values()] == list(HEADINGS.values())


@pytest.mark.parametrize("code", codes())
def test_prose_fits_a_terminal_and_no_word_of_the_page_is_lost(capsys, code):
    out = call(capsys, "explain", code).out
    page = load(code)
    for blocks in page.sections.values():
        for block in blocks:
            if block.is_code:
                assert all(f"    {line}" in out.split("\n") for line in block.text.split("\n"))
            else:
                assert block.text in " ".join(out.split())
    assert all(command in out for command in page.commands)
    prose = [line for line in out.split("\n") if line.startswith("  ") and not line.startswith("    ")]
    assert max(len(line) for line in prose) <= 80


def test_list_has_one_line_a_code_in_groups(capsys):
    done = call(capsys, "explain")
    lines = done.out.split("\n")
    assert (done.code, done.err) == (0, "")
    assert lines[0] == f"explain   {len(codes())} codes"
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    assert [line.split()[0] for line in lines if line.startswith("  ")] == codes()
    assert lines[-2] == f"kvcanary: PASS explain code=- pages={len(codes())} exit=0"


def test_a_ledger_rule_of_several_kinds_lists_them(capsys):
    done = call(capsys, "explain", "free-unheld")
    assert done.out.startswith("explain   free-unheld, a ledger rule of 2 kinds\n")
    assert done.out.endswith("kvcanary: PASS explain code=K02,K04 pages=2 exit=0\n")


def test_words_as_a_report_writes_them(capsys):
    done = call(capsys, "explain", "K07", "late-remote-write", "--quiet")
    assert done.out == "kvcanary: PASS explain code=K07 exit=0\n"


def test_an_unknown_code_is_a_usage_error_with_the_nearest(capsys):
    done = call(capsys, "explain", "late-remot-write")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: `late-remot-write` is no code, name or ledger rule that kvcanary knows\n\n"
        "hint: `kvcanary explain late-remote-write`\n"
    )


@pytest.mark.parametrize("argv", [[], ["K07"], ["free-unheld"]], ids=["list", "page", "rule"])
def test_json_holds_what_the_text_shows(capsys, argv):
    report = json.loads(call(capsys, "explain", *argv, "--format", "json").out)
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    assert (report["page"] is None) == (argv != ["K07"])
    assert report["summary"] == {"pages": len(report["pages"])}
    text = call(capsys, "explain", *argv).out
    assert all(entry["summary"] in text for entry in report["pages"])
    assert render_explain(report).header[0][0] == "explain"


def test_json_of_a_page_has_its_sections_and_commands(capsys):
    page = json.loads(call(capsys, "explain", "K07", "--format", "json").out)["page"]
    assert [section["key"] for section in page["sections"]] == list(HEADINGS)
    assert page["next"] == list(load("K07").commands)
    assert page["ledger_rules"] == ["xfer-to-old-epoch"]


@pytest.mark.parametrize("argv", [["explain"], ["explain", "K07"], ["explain", "alloc-held"]])
def test_nothing_heavy_is_loaded(argv):
    assert imported_by(*argv) & (HEAVY | {"yaml", "msgspec", "rich"}) == set()


def test_it_works_where_the_heavy_packages_are_missing():
    done = spawn_without(HEAVY, "explain", "unknown")
    assert (done.code, done.err) == (0, "")
