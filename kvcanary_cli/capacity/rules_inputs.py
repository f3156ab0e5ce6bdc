"""Rules about what the audit starts from: a log that says otherwise, a pool that is only estimated."""

from __future__ import annotations

from kvcanary_cli.capacity.rule import Hit, Rule, no_changes
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes


def _log_differs(setup: Setup, sizes: Sizes) -> Hit | None:
    if not sizes.differing:
        return None
    parts = [
        f"{name} is {logged:,} in the log and {computed:,} by flags and formula"
        for name, logged, computed in sizes.differing
    ]
    return Hit(
        text=f"log and flags do not describe the same server: {'; '.join(parts)}",
        when="silently",
        setting="--from-log",
    )


def _log_ranks(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.log is None or not setup.log.differing:
        return None
    parts = [
        f"{name} is {' and '.join(f'{value:,}' for value in values)}" for name, values in setup.log.differing
    ]
    return Hit(text=f"ranks state different sizes: {'; '.join(parts)}", when="silently", setting="--from-log")


def _pool_estimate(setup: Setup, sizes: Sizes) -> Hit | None:
    if not sizes.flipping:
        return None
    return Hit(
        text=f"the pool is an estimate, and {', '.join(sizes.flipping)} depends on where in its range it lies; "
        "read max_total_num_tokens from a start-up log",
        when="silently",
        setting="--hf-config",
    )


INPUT_RULES = (
    Rule("log-differs", "warning", "a start-up log and the formula disagree", _log_differs, no_changes),
    Rule(
        "pool-estimate",
        "warning",
        "the verdict depends on where an estimated pool lies in its range",
        _pool_estimate,
        no_changes,
    ),
    Rule("log-ranks", "info", "ranks of one log state different sizes", _log_ranks, no_changes),
)
