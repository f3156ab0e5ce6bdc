"""`kvcanary explain`: what a finding or a message of the server's canary means and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import FormatOption, OutputOption, QuietOption, emit_options
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit
from kvcanary_cli.report.frame import Report

STDIN = "-"


def explain(
    code: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE|TEXT|-]",
            help="Code, name or rule; or text pasted from a server's log; - reads a log from standard input. "
            "All codes are listed without one.",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="Explain the canary's messages in a server's log."),
    ] = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Explain a finding or a message of a server and what to do.

    Example: kvcanary explain "kv-canary: bs=600 exceeds write_req_capacity=512"
    """
    # deferred: --help must not pay for it
    from kvcanary_cli.report.explain import render_explain

    options = emit_options(output_format=output_format, output=output, quiet=quiet)
    # several words are one: reports write a kind as `K07 late-remote-write`
    words = " ".join(code) if code else None
    if log is not None and words is not None:
        raise UsageError(
            f"`--log` explains a whole file, and `{words[:60]}` stands beside it",
            hint="`kvcanary explain --log FILE`",
        )
    if log is not None or words == STDIN:
        emit(_about_log(log or STDIN), render_explain, options)
    emit(_about_words(words), render_explain, options)


def _about_words(words: str | None) -> Report:
    """Words are a code, a name or a rule; what is none of them is a text if it reads like one."""
    from kvcanary_cli.explain.index import look_up
    from kvcanary_cli.explain.log_scan import has_prefix, is_prose
    from kvcanary_cli.report.explain import build_explain

    if words is None:
        return build_explain(None)
    if has_prefix(words):
        return _about_text(words)
    try:
        return build_explain(look_up(words))
    except UsageError:
        if not is_prose(words):
            raise
        return _about_text(words)


def _about_text(text: str) -> Report:
    from kvcanary_cli.explain.grouping import collect
    from kvcanary_cli.explain.log_scan import scan_text
    from kvcanary_cli.report.explain import inputs
    from kvcanary_cli.report.explain_messages import build_messages

    lines = text.count("\n") + 1
    return build_messages(collect(scan_text(text)), inputs=inputs(text=text), lines=lines, others=[text])


def _about_log(path: str) -> Report:
    from kvcanary_cli.explain.grouping import collect
    from kvcanary_cli.explain.log_scan import scan_file
    from kvcanary_cli.report.explain import inputs
    from kvcanary_cli.report.explain_messages import build_messages

    scan = scan_file(path)
    found = collect(scan.hits)
    name = "<stdin>" if path == STDIN else path
    return build_messages(found, inputs=inputs(log=name), lines=scan.lines[0], others=scan.others)
