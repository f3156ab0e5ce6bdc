"""The words of `kvcanary selftest` as a plan of trials."""

from __future__ import annotations

from collections.abc import Iterable

from kvcanary_cli.errors import UsageError, nearest
from kvcanary_cli.kinds import KINDS
from kvcanary_cli.runtime.devices import DeviceChoice
from kvcanary_cli.selftest.matrix import Plan
from kvcanary_cli.sim.scenarios import SCENARIOS


def make_plan(*, kinds: str, scenarios: str, seeds: int, steps: int, device: DeviceChoice) -> Plan:
    """Checked plan; UsageError names the nearest known word."""
    return Plan(
        kinds=_words("--kinds", kinds if kinds == "all" else kinds.upper(), KINDS, "the codes of a fault"),
        scenarios=_words("--scenarios", scenarios, SCENARIOS, ", ".join(SCENARIOS)),
        seeds=tuple(range(seeds)),
        steps=steps,
        device=device,
    )


def _words(flag: str, text: str, known: Iterable[str], choices: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(known)
    see = "`kvcanary explain` lists them" if flag == "--kinds" else None
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in known:
            close = nearest(word, known)
            raise UsageError(
                f"`{flag}` names {word!r}, known are all, {choices}",
                hint=f"did you mean {close}?" if close and flag != "--kinds" else see,
            )
    if not words:
        raise UsageError(f"`{flag}` names nothing, known are all, {choices}", hint=see)
    return tuple(dict.fromkeys(words))
