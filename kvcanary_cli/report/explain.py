"""The report of `explain`: the list of codes, one page, or the few pages that a ledger rule leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcanary_cli.exits import Exit
from kvcanary_cli.explain.index import GROUPS, Answer, codes
from kvcanary_cli.explain.pages import HEADINGS, Block, Page, load
from kvcanary_cli.report.explain_messages import page_entry, render_messages
from kvcanary_cli.report.frame import Report, Sections, base_report, finish
from kvcanary_cli.report.tables import Column, Table
from kvcanary_cli.report.text import plural, wrap

INDENT = "  "


def build_explain(answer: Answer | None) -> Report:
    """The report of one answer; None lists every code. `page` is null unless one page was found."""
    report = base_report("explain", inputs=inputs(code=answer.word if answer is not None else None))
    pages = [load(code) for code in codes()] if answer is None else answer.pages
    report["pages"] = [page_entry(page) for page in pages]
    report["page"] = _full(pages[0]) if answer is not None and len(pages) == 1 else None
    report["summary"] = {"pages": len(pages)}
    return finish(report, Exit.PASS)


def inputs(*, code: str | None = None, log: str | None = None, text: str | None = None) -> dict[str, Any]:
    """What was asked: a code, a log, or a pasted text."""
    return {"code": code, "log": log, "text": text}


def _full(page: Page) -> dict[str, Any]:
    return {
        **page_entry(page),
        "sections": [
            {
                "key": key,
                "heading": heading,
                "blocks": [{"kind": block.kind, "text": block.text} for block in page.sections[key]],
            }
            for key, heading in HEADINGS.items()
        ],
        "next": list(page.commands),
    }


def render_explain(report: Report) -> Sections:
    """The text report."""
    page = report["page"]
    if "messages" in report:
        return render_messages(report)
    return _render_list(report) if page is None else _render_page(page)


def _render_page(page: dict[str, Any]) -> Sections:
    title = page["code"] if page["name"] == page["code"] else f"{page['code']} {page['name']}"
    header = [("explain", title), ("", page["summary"])]
    if page["ledger_rules"]:
        header.append(("", "\n".join(wrap("ledger rules: " + ", ".join(page["ledger_rules"]), width=69))))
    body: list[str | Table] = []
    for section in page["sections"]:
        body += ["", section["heading"], *_blocks([Block(**block) for block in section["blocks"]])]
    return Sections(
        header=header,
        body=body[1:],
        status="",
        notes=[("next", command) for command in page["next"]],
        verdict={"code": page["code"]},
    )


def _blocks(blocks: Sequence[Block]) -> list[str]:
    lines: list[str] = []
    for number, block in enumerate(blocks):
        if number and not (block.kind == blocks[number - 1].kind == "item"):
            lines.append("")
        if block.is_code:
            lines += [2 * INDENT + line for line in block.text.split("\n")]
        elif block.kind == "item":
            lines += wrap(block.text, first=f"{INDENT}- ")
        else:
            lines += wrap(block.text, first=INDENT)
    return lines


def _render_list(report: Report) -> Sections:
    pages = report["pages"]
    word = report["inputs"]["code"]
    about = (
        f"{plural(len(pages), 'code')}" if word is None else f"{word}, a ledger rule of {len(pages)} kinds"
    )
    body: list[str | Table] = []
    width = max(len(page["code"]) for page in pages)
    for group in GROUPS:
        rows = [_row(page, width) for page in pages if page["group"] == group]
        if rows:
            body += ["", group, Table([Column("CODE"), Column("WHAT")], rows, header=False)]
    return Sections(
        header=[("explain", about)],
        body=body[1:],
        status="",
        notes=[("next", f"kvcanary explain {pages[0]['code'] if word is not None else 'CODE'}")],
        verdict={"code": [page["code"] for page in pages] if word is not None else None, "pages": len(pages)},
    )


def _row(page: dict[str, Any], width: int) -> list[str]:
    what = page["summary"] if page["name"] == page["code"] else f"{page['name']}: {page['summary']}"
    return [page["code"].ljust(width), what]
