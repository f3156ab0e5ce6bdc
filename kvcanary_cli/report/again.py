"""The command line that gives a replay again, to put more flags behind: hints have to work when pasted."""

from __future__ import annotations

import os
import shlex
from typing import Any


def again(inputs: dict[str, Any], *more: str) -> str:
    """`kvcanary replay FILE ...` with every option that changes what is found, and `more` behind it.

    Args:
        inputs: of a replay's report.
    """
    trace = inputs["trace"]
    words = ["kvcanary", "replay", *(shell_word(path) for path in trace.get("parts") or [trace["path"]])]
    if inputs["hash"] != "all":
        words += ["--hash", inputs["hash"]]
    if inputs["chain"] != "mixed":
        words += ["--chain", inputs["chain"]]
    for key in ("sweep_interval", "seed"):
        if inputs[key]:
            words += [_flag(key), str(inputs[key])]
    for key in ("input_format", "block_size", "ring", "limit_steps", "limit_requests"):
        if inputs[key] is not None:
            words += [_flag(key), shell_word(str(inputs[key]))]
    if inputs.get("scheduler") is not None:
        words += ["--scheduler", inputs["scheduler"]]
    if inputs["capacities"] is not None:
        words += ["--capacities", shell_word(inputs["capacities"])]
    for key in ("skip_bad_lines", "stop_on_violation"):
        if inputs[key]:
            words.append(_flag(key))
    return " ".join([*words, *more])


def shell_word(text: str) -> str:
    """A word that a shell reads as `text`, in ASCII; bytes that are not printable as `$'\\xc3'`."""
    if text.isascii() and text.isprintable():
        return shlex.quote(text)
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(text))
    return f"$'{plain}'"


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
