"""Rules about speculative decoding: drafts that the canary can't follow."""

from __future__ import annotations

from kvcanary_cli.capacity.changes import Change, leave_out
from kvcanary_cli.capacity.features import ADAPTIVE, MULTI_LAYER
from kvcanary_cli.capacity.request import Request
from kvcanary_cli.capacity.rule import ChangeSets, Hit, Rule
from kvcanary_cli.capacity.setup import Setup
from kvcanary_cli.capacity.sizes import Sizes
from kvcanary_cli.capacity.speculative import BREADTH, STEPS, TOPK

ALGORITHM = "--speculative-algorithm"
_DRAFT_LOOPS = ("EAGLE", "EAGLE3", "STANDALONE")
# Step counts between which an adaptive draft changes
_ADAPTIVE_STEPS = (0, 1, 3, 5, 7)


def _spec_topk(setup: Setup, sizes: Sizes) -> Hit | None:
    draft = setup.speculation
    if draft.algorithm not in _DRAFT_LOOPS or draft.topk is None or draft.topk <= 1:
        return None
    given = "" if TOPK in _given(setup) else ", which is the default for this model"
    return Hit(
        text=f"top-k is {draft.topk:,}{given}: a draft step copies requests x {draft.topk:,} positions into a "
        "buffer of one row a request, and its capture fails by shape",
        when="at first capture",
        value=1,
        need=draft.topk,
        setting=TOPK if TOPK in _given(setup) else ALGORITHM,
    )


def _spec_topk_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    one = Change(flag=TOPK, value="1", note="a chain; the draft is then steps + 1 tokens")
    if STEPS in request.arguments.values:
        return [(one,)]
    return [(Change(flag=STEPS, value=str(setup.speculation.steps or 1)), one)]


def _spec_adaptive(setup: Setup, sizes: Sizes) -> Hit | None:
    if ADAPTIVE not in setup.features.on or setup.speculation.algorithm is None:
        return None
    return Hit(
        text="the number of draft steps changes between "
        f"{', '.join(map(str, _ADAPTIVE_STEPS))}, the canary has managers for the first choice of 3: an "
        "IndexError at 5 or 7 steps",
        when="under load",
        setting=ADAPTIVE,
    )


def _spec_adaptive_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, ADAPTIVE)]


def _spec_unsupported(setup: Setup, sizes: Sizes) -> Hit | None:
    algorithm = setup.speculation.algorithm
    if algorithm == "FROZEN_KV_MTP":
        what, setting = algorithm, ALGORITHM
    elif algorithm is not None and MULTI_LAYER in setup.features.on:
        what, setting = "multi-layer EAGLE", MULTI_LAYER
    else:
        return None
    return Hit(
        text=f"{what} drafts outside of the canary's managers: an AssertionError in the first draft",
        when="at the first step",
        setting=setting,
    )


def _spec_unsupported_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    is_algorithm = setup.speculation.algorithm == "FROZEN_KV_MTP"
    return [leave_out(request, ALGORITHM if is_algorithm else MULTI_LAYER)]


def _spec_draft(setup: Setup, sizes: Sizes) -> Hit | None:
    if setup.speculation.algorithm not in ("DFLASH", "DSPARK"):
        return None
    return Hit(
        text=f"the draft of {setup.speculation.algorithm} is never checked, and a draft outside of a graph "
        "raises an AssertionError",
        when="at the first step" if not setup.graph.is_on else "under load",
        setting=ALGORITHM,
    )


def _leave_algorithm(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [leave_out(request, ALGORITHM)]


def _spec_tree(setup: Setup, sizes: Sizes) -> Hit | None:
    draft = setup.speculation
    if draft.algorithm != "NGRAM" or draft.topk is None or draft.topk <= 1:
        return None
    return Hit(
        text=f"draft trees {draft.topk:,} wide repeat positions, which the canary takes for a broken chain: "
        "violations are reported where there are none",
        when="silently",
        value=1,
        need=draft.topk,
        setting=BREADTH,
    )


def _spec_tree_changes(request: Request, setup: Setup, sizes: Sizes) -> ChangeSets:
    return [(Change(flag=BREADTH, value="1", note="a chain"),), leave_out(request, ALGORITHM)]


def _given(setup: Setup) -> frozenset[str]:
    return setup.speculation.given


SPECULATIVE_RULES = (
    Rule(
        id="spec-topk",
        severity="error",
        title="a draft with top-k above 1 does not fit the canary's buffers",
        check=_spec_topk,
        changes=_spec_topk_changes,
    ),
    Rule(
        id="spec-adaptive",
        severity="error",
        title="adaptive drafts take more steps than the canary has managers",
        check=_spec_adaptive,
        changes=_spec_adaptive_changes,
    ),
    Rule(
        id="spec-unsupported",
        severity="error",
        title="the draft of this algorithm runs without a manager of the canary",
        check=_spec_unsupported,
        changes=_spec_unsupported_changes,
    ),
    Rule(
        id="spec-draft",
        severity="warning",
        title="the draft of this algorithm is not checked, and fails outside of a graph",
        check=_spec_draft,
        changes=_leave_algorithm,
    ),
    Rule(
        id="spec-tree",
        severity="warning",
        title="draft trees break the rule of positions, which gives false alarms",
        check=_spec_tree,
        changes=_spec_tree_changes,
    ),
)
