"""All rules, in the order in which they are judged and mended.

An id is never reused; a new rule is a function and a row of one of the `rules_*` modules.
"""

from __future__ import annotations

from kvcanary_cli.capacity.rule import Finding, Rule, Severity
from kvcanary_cli.capacity.rules_checks import CHECK_RULES
from kvcanary_cli.capacity.rules_entries import ENTRY_RULES
from kvcanary_cli.capacity.rules_features import FEATURE_RULES
from kvcanary_cli.capacity.rules_inputs import INPUT_RULES
from kvcanary_cli.capacity.rules_layout import LAYOUT_RULES
from kvcanary_cli.capacity.rules_requests import REQUEST_RULES, VERIFY_RULES
from kvcanary_cli.capacity.rules_speculative import SPECULATIVE_RULES
from kvcanary_cli.capacity.rules_workload import WORKLOAD_RULES
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes

# Those that change the number of requests first: the other changes are solved on top of them
RULES: tuple[Rule, ...] = (
    *SPECULATIVE_RULES,
    *REQUEST_RULES,
    *ENTRY_RULES,
    *FEATURE_RULES,
    *CHECK_RULES,
    *LAYOUT_RULES,
    *VERIFY_RULES,
    *WORKLOAD_RULES,
    *INPUT_RULES,
)


def find(setup: Setup, sizes: Sizes) -> list[Finding]:
    """The rules that fire, in their order; few do where the launch has no canary."""
    found = []
    for rule in RULES:
        if rule.is_bound and setup.workload is not None:
            continue
        if rule.applies_to(setup.version.name) and (setup.has_canary or not rule.needs_canary):
            hit = rule.check(setup, sizes)
            if hit is not None:
                found.append(Finding(rule=rule, hit=hit))
    return found


def of_severity(findings: list[Finding], *severities: Severity) -> list[Finding]:
    """Those of some severities."""
    return [finding for finding in findings if finding.rule.severity in severities]


def errors(findings: list[Finding]) -> list[Finding]:
    """Those that make the audit fail."""
    return of_severity(findings, "error")
