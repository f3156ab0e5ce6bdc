"""Rules about the canary's own flags and variables."""

from __future__ import annotations

from kvcanary_cli.capacity import features as names
from kvcanary_cli.capacity.changes import Change, leave_out
from kvcanary_cli.capacity.formula import ELEMENT_UNIT
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule
from kvcanary_cli.capacity.setup import CANARY, Setup
from kvcanary_cli.capacity.sizes import Sizes, row_units

# Bytes that a real-data row must be a multiple of
_ROW_UNIT = 16
_OWN_CACHES = ("unified", "auto", "default")


def _sweep_off(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.features.sweep_interval <= 0 or setup.canary.mode != "none":
        return None
    return Hit(
        text="sweeps need the canary on: the server refuses the flags",
        when="at start-up",
        setting=names.SWEEP,
    )


def _sweep_off_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=CANARY, value="log"),), (Change(flag=names.SWEEP, value="0", note="no sweeps"),)]


def _input_oracle(setup: Setup, sizes: Sizes) -> Hit | None:
    on = setup.features.on
    if names.INPUT_CHECK not in on or names.TOKEN_ORACLE in on:
        return None
    return Hit(
        text="the check of inputs needs the token oracle", when="at start-up", setting=names.INPUT_CHECK
    )


def _input_oracle_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    oracle = Change(
        flag=names.TOKEN_ORACLE, value="1", note="a test of sampling, not for traffic", is_env=True
    )
    return [leave_out(request, names.INPUT_CHECK, "its default"), (oracle,)]


def _damages_kv(setup: Setup) -> bool:
    return any("REAL_KV" in name for name in setup.features.perturbations)


def _perturb_group(setup: Setup, sizes: Sizes) -> Hit | None:
    if not _damages_kv(setup) or setup.features.target_group in ("full", "swa"):
        return None
    return Hit(
        text="damage to the KV is asked for, and no group (full or swa) is named",
        when="at start-up",
        setting=names.TARGET_GROUP,
    )


def _perturb_group_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    group = Change(flag=names.TARGET_GROUP, value="full", is_env=True)
    return [*_perturb_changes(request, setup, sizes), (group,)]


def _perturb(setup: Setup, sizes: Sizes) -> Hit | None:
    if not setup.features.perturbations:
        return None
    return Hit(
        text="the canary damages data on purpose: a self-test, not for traffic",
        when="under load",
        setting=setup.features.perturbations[0],
    )


def _perturb_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [tuple(Change(flag=name, value="0", is_env=True) for name in setup.features.perturbations)]


def _gemma_positions(setup: Setup, sizes: Sizes) -> Hit | None:
    is_gemma = (setup.model.architecture or "").startswith("Gemma4")
    if not is_gemma or names.GEMMA_POSITIONS in setup.features.on:
        return None
    return Hit(
        text="this model changes its positions in place, which the canary reports as violations",
        when="silently",
        setting=names.GEMMA_POSITIONS,
    )


def _gemma_positions_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=names.GEMMA_POSITIONS, value="1", is_env=True),)]


def _real_data_rows(setup: Setup, sizes: Sizes) -> Hit | None:
    model, units = setup.model, row_units(setup)
    if (
        setup.features.word(names.REAL_DATA) in (None, "none")
        or units is None
        or model.latent_dim is not None
    ):
        return None
    # one row is the K of one layer; V has the same or its own width
    halves = (model.head_dim or 0, model.v_head_dim or model.head_dim or 0)
    heads = max(1, (model.kv_heads or 0) // setup.parallel.attn_tp)
    per_element = units // (heads * sum(halves))
    odd = [width for width in halves if heads * width * per_element % (_ROW_UNIT * ELEMENT_UNIT)]
    if not odd:
        return None
    return Hit(
        text=f"a row of {heads * odd[0] * per_element // ELEMENT_UNIT:,} B is no multiple of {_ROW_UNIT} B, "
        "which hashing of real data needs",
        when="at start-up",
        setting=names.REAL_DATA,
    )


def _real_data_rows_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=names.REAL_DATA, value="none", note="stamps only"),)]


CHECK_RULES = (
    Rule(
        "sweep-off",
        "error",
        "sweeps are asked for while the canary is off",
        _sweep_off,
        _sweep_off_changes,
        needs_canary=False,
    ),
    Rule(
        "real-data-rows",
        "error",
        "rows of real data are no multiple of 16 bytes",
        _real_data_rows,
        _real_data_rows_changes,
    ),
    Rule(
        "input-oracle",
        "error",
        "the check of inputs lacks the token oracle",
        _input_oracle,
        _input_oracle_changes,
    ),
    Rule(
        "perturb-group",
        "error",
        "damage to the KV is asked for without a group",
        _perturb_group,
        _perturb_group_changes,
    ),
    Rule("perturb", "warning", "the canary damages data on purpose", _perturb, _perturb_changes),
    Rule(
        "gemma-positions",
        "warning",
        "positions changed in place give false alarms",
        _gemma_positions,
        _gemma_positions_changes,
    ),
)
