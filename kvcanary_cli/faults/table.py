"""The table of all kinds: who plants each of them, and in which scenarios there is a place for it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from kvcanary_cli.faults import (
    addressing,
    inputs,
    layouts,
    lifetime,
    limits,
    memory,
    padding,
    prefixes,
    remote,
    restore,
    spills,
    window,
)
from kvcanary_cli.faults.stream import Fault, NotApplicable, Planter, Stream
from kvcanary_cli.kinds import KINDS, title

SCENARIO_NAMES = ("decode", "prefill", "chunked", "mixed", "shared-prefix", "swa", "spec")


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        code: as in `KINDS`.
        planter: generator that dresses a stream, yields, does the damage and returns the fault.
        scenarios: scenarios of the scheduler model that have a place for it.
    """

    code: str
    planter: Planter
    scenarios: tuple[str, ...] = SCENARIO_NAMES

    @property
    def name(self) -> str:
        """Its name, such as `late-remote-write`."""
        return KINDS[self.code]

    def start(self, stream: Stream, seed: str) -> Generator[None, None, Fault]:
        """The planter, seeded, before its first half."""
        stream.start(seed)
        return self.planter(stream)

    def no_place(self, error: NotApplicable) -> NotApplicable:
        """The error of a trace without a place for this kind."""
        return NotApplicable(
            f"{title(self.code)} has no place in this trace: {error.message}",
            hint=f"scenarios that have one: {', '.join(self.scenarios)} (`kvcanary synth --scenario "
            f"{self.scenarios[0]}`)",
        )


FAULTS = {
    kind.code: kind
    for kind in (
        FaultKind("K01", lifetime.dual_owner),
        FaultKind("K02", lifetime.double_free),
        FaultKind("K03", lifetime.stale_mapping),
        FaultKind("K04", lifetime.early_shared_release),
        FaultKind("K05", lifetime.write_to_shared),
        FaultKind("K06", remote.inflight_write_after_free),
        FaultKind("K07", remote.late_remote_write),
        FaultKind("K08", restore.store_source_race),
        FaultKind("K09", restore.reload_race),
        FaultKind("K10", addressing.table_changed_midflight),
        FaultKind("K11", addressing.leftover_tail),
        FaultKind("K12", addressing.address_mixup),
        FaultKind("K13", addressing.boundary_arithmetic),
        FaultKind("K14", window.window_mismatch, ("swa",)),
        FaultKind("K15", padding.pad_lane_write),
        FaultKind("K16", inputs.rollback_slip, ("spec",)),
        FaultKind("K17", inputs.position_drift),
        FaultKind("K18", inputs.wrong_input_token),
        FaultKind("K19", prefixes.uncomputed_prefix),
        FaultKind("K20", prefixes.key_collision),
        FaultKind("K21", memory.unattributed_bytes),
        FaultKind("K22", restore.torn_transfer),
        FaultKind("K23", layouts.missing_sidecar),
        FaultKind("K24", layouts.dtype_scale),
        FaultKind("K25", layouts.geometry_mismatch),
        FaultKind("K26", restore.overlay_restore),
        FaultKind("C1", limits.batch_limit),
        FaultKind("C2", limits.token_limit),
        FaultKind("C3", limits.draft_multiplier, ("spec",)),
        FaultKind("C4", limits.verify_blackout),
        FaultKind("C5", spills.row_width),
        FaultKind("C6", spills.address_range),
        FaultKind("C7", spills.report_saturation),
    )
}
