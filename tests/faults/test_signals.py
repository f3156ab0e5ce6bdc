"""Each planted kind, replayed: the slots it names fail with the bits its taxonomy says, and no other slot does.

The expectations are those of the fault kinds' description (`docs/faults.md`), not what a run happened to give.
"""

from __future__ import annotations

import pytest

from kvcanary_cli.faults.planting import dress, plant
from kvcanary_cli.faults.table import FAULTS
from kvcanary_cli.kinds import KINDS
from tests.faults.streams import expand, made, recorded, replayed

FOREIGN = ({"token"}, {"position", "chain"})  # somebody else's stamps, or none: (must, may)
WRITTEN_OVER = ({"token"}, {"position", "chain", "bytes"})  # the same, with the victim in the writing forward
BYTES = ({"bytes"}, set())
SILENT = (set(), set())

# by kind, or by kind and variant
SIGNALS = {
    "K01": WRITTEN_OVER,
    "K02": SILENT,
    "K03 row": FOREIGN,
    "K03 tree": ({"position"}, {"chain"}),
    "K04": FOREIGN,
    "K05": ({"token"}, set()),
    "K06": BYTES,
    "K07 stamps": FOREIGN,
    "K07 bytes": BYTES,
    "K08": FOREIGN,
    "K09": FOREIGN,
    "K10": ({"token"}, set()),
    "K11": WRITTEN_OVER,
    "K12": WRITTEN_OVER,
    "K13": WRITTEN_OVER,
    "K14 reused": WRITTEN_OVER,
    "K14 unmapped": SILENT,
    "K15": BYTES,
    "K16": ({"token"}, set()),
    "K17": ({"write_position", "position"}, set()),
    "K18": ({"write_token", "token"}, set()),
    "K19": FOREIGN,
    "K20 tokens": ({"token"}, set()),
    "K20 key": SILENT,
    "K21 bytes": BYTES,
    "K21 token": ({"token"}, set()),
    "K21 position": ({"position"}, set()),
    "K21 prev_hash": ({"chain"}, set()),
    "K22": FOREIGN,
    "K23": BYTES,
    "K24": SILENT,
    "K25": ({"position", "token"}, {"chain"}),
    "K26": BYTES,
    "C5": FOREIGN,
    "C6": FOREIGN,
    "C7": BYTES,
}
SHADOW_BITS = {"chain", "write_position"}
CAPACITIES = {"C1": "write_req_capacity", "C2": "write_entry_capacity", "C3": "write_entry_capacity"}
CAPACITIES |= {"C4": "verify_capacity", "C7": "violation_log"}

# what the ledger must say by the step of the answer, one of these; kinds that are not here it can't see
RULES = {
    "K01": {"alloc-held"},
    "K02": {"free-unheld", "free-twice-in-list"},
    "K03": {"row-names-released", "tree-names-released"},
    "K04": {"free-unheld"},
    "K05": {"write-shared"},
    "K06": {"write-after-free"},
    "K07": {"xfer-to-old-epoch"},
    "K08": {"offload-unwritten"},
    "K09": {"read-in-transfer"},
    "K10": {"row-changed-by-other"},
    "K11": {"leftover", "write-beyond-length", "write-foreign"},
    "K12": {"write-outside-row"},
    "K13": {"write-outside-row"},
    "K14": {"window-reused", "window-unmapped"},
    "K15": {"pad-write"},
    "K16": {"length-mismatch"},
    "K17": {"position-drift"},
    "K19": {"publish-unwritten", "share-unwritten"},
    "K20": {"share-token-mismatch", "key-mismatch"},
    "K22": {"reload-partial", "xfer-partial"},
    "K23": {"reload-missing-sources", "xfer-missing-sources"},
    "K24": {"dtype-mismatch"},
    "K25": {"geometry-mismatch"},
    "K26": {"reload-over-published"},
    "C5": {"spill"},
    "C6": {"slot-out-of-range"},
}
UNSEEN = {"K21", "C1", "C2", "C3", "C4", "C7"}  # K18 may be seen later, when the token is published

QUICK = ("mixed", "shared-prefix", "swa", "spec")
CASES = [(kind, name) for kind, entry in FAULTS.items() for name in QUICK if name in entry.scenarios]
# without its fault, one scenario of a kind is enough for a quick run
DRESSED = [
    case if case[0] not in dict(CASES[:n]) else pytest.param(*case, marks=pytest.mark.slow)
    for n, case in enumerate(CASES)
]
ALL = [(kind, name) for kind, entry in FAULTS.items() for name in entry.scenarios]


def check_signals(header, events, kind, seed):
    """Plant, replay, and compare what failed with what the answer says."""
    damaged, after, (answer,) = plant(header, events, kind, seed)
    seen = replayed(damaged, after)
    named = expand(answer.slots, answer.group) | expand(answer.window_slots, "swa")
    innocent = answer.innocent
    shadows = expand(innocent.slots, answer.group) | expand(innocent.window_slots, "swa")
    side = expand(answer.side, answer.group) | expand(answer.side, "swa")
    failed = set(seen.bits)
    assert failed <= named | shadows | side
    assert all(seen.bits[key] <= SHADOW_BITS for key in failed & shadows - side)
    must, may = SIGNALS.get(kind) or SIGNALS.get(f"{kind} {answer.variant}") or SILENT
    shown = set().union(*(seen.bits[key] for key in failed & named)) if failed & named else set()
    assert must <= shown <= must | may
    if must and answer.damaged:
        # a window hides what is outside of it, so only the answer's own group must show every slot
        assert expand(answer.slots, answer.group) <= failed
    if must:
        first = min(seen.first[key] for key in failed & named)
        assert answer.step <= first
        if kind.startswith("K21") or kind == "C7":
            assert first == answer.found_by_step
    check_breaches(kind, answer, seen)
    capacities = {v.capacity for v in seen.result.capacity_violations} - {"violation_log"}
    saturated = {"violation_log"} if kind == "C7" else set()
    stated = {CAPACITIES[kind]} if kind in CAPACITIES else set()
    assert capacities | saturated == stated
    if kind in CAPACITIES and kind != "C7":
        assert min(v.step for v in seen.result.capacity_violations) == answer.step == answer.found_by_step
    return answer


def check_breaches(kind, answer, seen):
    """The ledger speaks by the step that the answer says, and not of anything before the fault."""
    breaches = [breach for incident in seen.result.incidents for breach in incident.breaches]
    if kind in UNSEEN:
        assert not breaches
    if kind in RULES:
        first = min(breaches, key=lambda breach: breach.step)
        assert any(breach.rule in RULES[kind] for breach in breaches if breach.step == first.step)
        assert first.step <= answer.found_by_step


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_planted(kind, name):
    check_signals(*made(name), kind, seed=3)


@pytest.mark.parametrize(("kind", "name"), DRESSED)
def test_dress_alone_is_clean(kind, name):
    seen = replayed(*dress(*made(name), kind, seed=3))
    assert not seen.bits
    assert not seen.result.incidents
    assert not seen.result.capacity_violations


@pytest.mark.parametrize("kind", ["K01", "K04", "K07", "K12", "K17", "K19", "K21", "K23", "C5", "C6"])
def test_pages_of_one_slot(kind):
    header, events = made("decode", page_size=1)
    assert not replayed(*dress(header, events, kind, seed=5)).result.incidents
    check_signals(header, events, kind, seed=5)


@pytest.mark.parametrize("kind", ["K02", "K06", "K10", "K15", "K18", "K21", "K26", "C1", "C2", "C4"])
def test_recorded_trace(kind):
    header, events = recorded("clean_p16")
    assert not replayed(*dress(header, events, kind, seed=2)).result.incidents
    check_signals(header, events, kind, seed=2)


def test_stale_entries_of_the_cache_are_seen_by_a_sweep():
    header, events = made("shared-prefix", steps=80)
    seeds = [seed for seed in range(8) if plant(header, events, "K03", seed)[2][0].variant == "tree"]
    assert len(seeds) > 1
    for seed in seeds:
        answer = check_signals(header, events, "K03", seed)
        assert (answer.rid, answer.writer) == (None, "heir")


VARIANTS = {
    "K03": {"row", "tree"},
    "K02": {"again", "list"},
    "K07": {"stamps", "bytes"},
    "K09": {"reload", "transfer"},
    "K13": {"slot", "page"},
    "K20": {"key", "tokens"},
    "K21": {"bytes", "token", "position", "prev_hash"},
    "K24": {"dtype", "item_bytes", "scale"},
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_every_variant_is_drawn(kind):
    header, events = made("mixed", steps=80)
    drawn = set()
    for seed in range(24):
        drawn.add(plant(header, events, kind, seed)[2][0].variant)
        if drawn == VARIANTS[kind]:
            return
    pytest.fail(f"{VARIANTS[kind] - drawn} never came up")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "name"), ALL)
def test_planted_everywhere(kind, name, seed):
    header, events = made(name, steps=60, seed=seed)
    assert not replayed(*dress(header, events, kind, seed)).result.incidents
    check_signals(header, events, kind, seed)


def test_every_kind_has_an_expectation():
    known = {key.split()[0] for key in SIGNALS} | set(CAPACITIES)
    assert known == set(KINDS) == set(FAULTS)
