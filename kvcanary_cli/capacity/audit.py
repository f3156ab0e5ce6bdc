"""The audit of one launch: what the server would derive, which rules fire, and what makes them hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcanary_cli.capacity.capacities import Capacity, capacities
from kvcanary_cli.capacity.fixes import Fix, solve
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import Finding, no_changes
from kvcanary_cli.capacity.rules import errors, find, of_severity
from kvcanary_cli.capacity.setup import Setup, resolve
from kvcanary_cli.capacity.sizes import Sizes, derive


class Audit(NamedTuple):
    """The result.

    Args:
        fixes: of errors, else of warnings; empty where there is neither.
        not_reached: rules that the flags alone would break, where the need of a workload counts instead.
    """

    request: Request
    setup: Setup
    sizes: Sizes
    findings: list[Finding]
    capacities: list[Capacity]
    fixes: list[Fix]
    not_reached: list[str]


class Reading(NamedTuple):
    """How a workload is read: its format, and the tokens of a block id, where the file does not tell."""

    input_format: str | None = None
    block_size: int | None = None


def audit(
    request: Request,
    workload: str | None = None,
    reading: Reading | None = None,
    on_progress: Callable[[int, int], None] = lambda steps, entries: None,
) -> Audit:
    """Audit a launch, with `workload` by what the requests of that file need.

    Args:
        on_progress: gets the forwards so far that a model made of a request trace, and the last one's verify entries.

    Raises: MissingInputsError for what neither flags nor files say, UsageError or InputError for what
        the server refuses, InputError where the capacities that a config states don't follow from it.
    """
    setup = resolve(request)
    sizes = derive(setup)
    allowed: list[Finding] = []
    check_stated(request, sizes)
    if setup.pool.estimate is not None:
        sizes = sizes._replace(flipping=_flipping(request))
    if workload is not None:
        from kvcanary_cli.capacity.workload import measure_file  # deferred: it loads NumPy

        request = request._replace(workload=measure_file(workload, setup, sizes, reading, on_progress))
        allowed = errors(find(setup, sizes))
        setup = resolve(request)
    findings = find(setup, sizes)
    return Audit(
        request=request,
        setup=setup,
        sizes=sizes,
        findings=findings,
        capacities=capacities(setup, sizes, findings),
        fixes=_fixes(request, findings),
        not_reached=[finding.rule.id for finding in allowed if finding.rule.is_bound],
    )


def _flipping(request: Request) -> tuple[str, ...]:
    """Errors and warnings that depend on where in its range an estimated pool lies."""
    fired: list[set[str]] = []
    for end in ("smallest", "", "largest"):
        setup = resolve(request._replace(options=request.options._replace(estimate_end=end)))
        findings = of_severity(find(setup, derive(setup)), "error", "warning")
        fired.append({finding.rule.id for finding in findings})
    return tuple(sorted(fired[0].union(*fired) - fired[0].intersection(*fired)))


def _fixes(request: Request, findings: list[Finding]) -> list[Fix]:
    """Fixes of what fails; where nothing does, of what may."""
    if errors(findings):
        return solve(request, "error")
    warned = [
        finding for finding in of_severity(findings, "warning") if finding.rule.changes is not no_changes
    ]
    return solve(request, "error", "warning") if warned else []


def check_stated(request: Request, sizes: Sizes) -> None:
    """Compare the capacities that a config states with those that follow from it.

    Not done where flags or options stand beside the config: they ask what would be, not what was.
    Raises: InputError for the first that differs.
    """
    config = request.config
    if config is None or request.is_overridden:
        return
    computed = {"write_req": sizes.write_req, "write_entry": sizes.write_entry, "verify": sizes.verify}
    for name, _, by_formula in sizes.differing:
        # capacities alone override the formula as a log does
        if name.removesuffix("_capacity") in computed:
            computed[name.removesuffix("_capacity")] = by_formula
    for name, value in computed.items():
        stated = getattr(config.capacities, name)
        if stated is not None and stated != value:
            raise config.file.error(
                f"{stated:,} is stated, but {value:,} follows from the other values of this config",
                at=f"$.capacities.{name}",
                hint="compare `args` and `pool` with the start-up log that states it, or `--sglang-version`",
            )
