"""One small function for each kind of fault: does it explain this case, and what speaks against it.

A rule gets a case and returns an opinion, or None when the kind does not come to mind. To add a kind, add its code
to `kinds.py`, a rule here, a planter to `faults/` and a page to `explain`.
"""

from __future__ import annotations

from kvcanary_cli.replay.rules import addressing, content, movement, ownership
from kvcanary_cli.replay.rules.base import Context, Rule

RULES: dict[str, Rule] = {
    "K01": ownership.dual_owner,
    "K02": ownership.double_free,
    "K03": ownership.stale_mapping,
    "K04": ownership.early_shared_release,
    "K05": ownership.write_to_shared,
    "K06": ownership.inflight_write_after_free,
    "K07": movement.late_remote_write,
    "K08": movement.store_source_race,
    "K09": movement.reload_race,
    "K10": addressing.table_changed_midflight,
    "K11": addressing.leftover_tail,
    "K12": addressing.address_mixup,
    "K13": addressing.boundary_arithmetic,
    "K14": addressing.window_mismatch,
    "K15": addressing.pad_lane_write,
    "K16": content.rollback_slip,
    "K17": content.position_drift,
    "K18": content.wrong_input_token,
    "K19": content.uncomputed_prefix,
    "K20": content.key_collision,
    "K21": content.unattributed_bytes,
    "K22": movement.torn_transfer,
    "K23": movement.missing_sidecar,
    "K24": movement.dtype_scale,
    "K25": movement.geometry_mismatch,
    "K26": movement.overlay_restore,
    "C5": addressing.row_width,
    "C6": addressing.address_range,
}

__all__ = ["RULES", "Context", "Rule"]
