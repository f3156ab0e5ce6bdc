"""`docs/findings.md`, made from the pages so that it can't fall behind them.

To write it anew: python -c "from kvcanary_cli.explain.document import document; print(document(), end='')"
"""

from __future__ import annotations

from kvcanary_cli.explain.index import GROUPS
from kvcanary_cli.explain.pages import load

HEADER = (
    '{"ev":"header","format":"kvcanary-trace","version":1,'
    '"pool":{"slots":64,"page_size":4,"rows":4,"row_width":16},'
    '"sources":[{"name":"k","bytes_per_slot":32,"hashed_bytes":32}]}'
)
"""What examples that have no header of their own stand after."""

INTRO = """\
# Findings

One line for each code that a report can hold. The code links to its page, which `kvcanary explain CODE` prints in the
terminal: what it is, why it matters, how it is found, what looks like it, what to do, an example, and what the tool
can't see about it. `kvcanary explain` lists all codes. Codes, names and ledger rules are accepted in upper or lower
case:

```bash
kvcanary explain K07
kvcanary explain late-remote-write
kvcanary explain xfer-to-old-epoch
```

It also takes what a server has logged: one message, a whole log (plain or gzip), or a pipe. It knows the texts of the
server's canary, says what happened and what to change with the numbers of the message, decodes `kv_canary violation:`
lines, and groups and counts what it finds. Exit code 1: nothing in it is a message of the canary; the nearest known one
is named.

```bash
kvcanary explain "kv-canary: bs=600 exceeds write_req_capacity=512"
kvcanary explain --log server.log
journalctl -u sglang | kvcanary explain -
```

The check says what differs, the ledger says which rule was broken, and the kind is concluded from both. An example
of these is a whole trace: put this line in front of those that don't begin with a header, and replay it. That of a
rule of `check-capacities` is a command, that of a stream of KV events a file of its own.

```json
{header}
```
"""


def document() -> str:
    """The text of `docs/findings.md`."""
    parts = [INTRO.replace("{header}", HEADER)]
    for group, members in GROUPS.items():
        rows = [_row(code) for code in members]
        table = "\n".join(["| code | name | what it is | ledger rules |", "| --- | --- | --- | --- |", *rows])
        parts.append(f"## {group[0].upper()}{group[1:]}\n\n{table}\n")
    return "\n".join(parts)


def _row(code: str) -> str:
    page = load(code)
    name = page.name if page.name != code else "-"
    rules = ", ".join(f"`{rule}`" for rule in page.rules) or "-"
    return f"| [{code}](../kvcanary_cli/explain/pages/{code}.md) | {name} | {page.summary} | {rules} |"
