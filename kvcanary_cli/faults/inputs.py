"""Wrong lengths, positions and tokens of a forward: K16 to K18."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from msgspec.structs import replace

from kvcanary_cli.faults.guests import array
from kvcanary_cli.faults.lanes import positions_of, tokens_of
from kvcanary_cli.faults.ownership import Lane, Ownership
from kvcanary_cli.faults.places import Step
from kvcanary_cli.faults.scenes import find_scene
from kvcanary_cli.faults.stream import Fault, NotApplicable, Stream
from kvcanary_cli.faults.victims import next_read
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.tokens import VOCABULARY

DRAFTS = 4
MAX_DRIFT = 3


def rollback_slip(stream: Stream) -> Generator[None, None, Fault]:
    """K16: after a verify the length advances by more tokens than were accepted: rejected drafts stay.

    Found by: `length-mismatch` at the next forward; `verify_token` alone on the drafts that were kept.

    Silent: `chain_hash` and `position`: the drafts are a valid chain.
    """
    if not any(cell.event.accepted for cell in stream.cells if isinstance(cell.event, ev.Forward)):
        raise NotApplicable("no forward verifies drafts")
    scene = find_scene(stream, 3)
    guest = scene.guest("speculative", 3)
    guest.enter(scene.before)
    guest.forward(scene.before, stream.unit + 1)
    kept = stream.rng.randint(1, DRAFTS - 1)
    start, offset = guest.length, stream.header.token_position_offset
    true = guest.tokens[start + offset : start + offset + kept]
    # a wrong draft differs from the token that belongs there
    wrong = [(token + 1) % VOCABULARY for token in guest.tokens[start + offset + kept :][: DRAFTS - kept]]
    guest.forward(scene.before, DRAFTS, mode="verify", tokens=true + wrong, accepted=[kept])
    guest.length = start + kept
    later = [guest.forward(partial(stream.after, cell), 1) for cell in scene.cells[:2]]
    guest.leave(scene.after)
    yield
    slip = stream.rng.randint(1, DRAFTS - kept)
    for cell in later:
        prefix = cell.event.prefix[0] + slip
        cell.event = replace(cell.event, prefix=[prefix], slots=array([guest.slots[prefix]]))
    slots = guest.slots[start + kept : start + kept + slip]
    return Fault(slots=slots, at=later[0], rid=guest.rid, writer=guest.rid, found=later[0])


def position_drift(stream: Stream) -> Generator[None, None, Fault]:
    """K17: a lane's tokens go to the right slots with positions that are too high by a constant.

    Found by: `position-drift`, and `write_position` on the lane's first token; then `position` on what it
    wrote.

    Silent: tokens, chain and table; the request's next token is a shadow (`write_position`).
    """
    step, (lane, slots, rest) = stream.pick(
        stream.middle(), partial(_read_lanes, stream), "no request that continues a chain is read again"
    )
    yield
    cell = stream.cell(step)
    drift = stream.rng.randint(1, MAX_DRIFT)
    positions = positions_of(cell.event)
    for at in range(lane.first, lane.first + lane.count):
        positions[at] += drift
    cell.event = replace(cell.event, positions=positions)
    return Fault(slots=slots, at=cell, rid=lane.rid, writer=lane.rid, found=cell, side=rest)


def wrong_input_token(stream: Stream) -> Generator[None, None, Fault]:
    """K18: a lane gets the pending token of another request as input; its KV is faithful to that token.

    The forward gets the lane's expected ids where the trace has none.

    Found by: `write_token` at the write, later `verify_token` on that slot where the trace tells the
    request's tokens.

    Silent: the ledger, and every other check; no slot is damaged.
    """
    step, (lane, slots, _) = stream.pick(
        stream.middle(), partial(_read_lanes, stream), "no request that continues a chain is read again"
    )
    cell = stream.cell(step)
    (state,) = [state for _, state in stream.visit([step])]
    tokens = tokens_of(cell.event, state, stream.header.token_position_offset)
    at = lane.first + len(slots) - 1
    cell.event = replace(cell.event, tokens=tokens)
    if cell.event.expect is None:
        last = lane.first + lane.count
        known = [token if lane.first <= i < last else -1 for i, token in enumerate(tokens)]
        cell.event = replace(cell.event, expect=known)
    yield
    others = [other for other in step.lanes if other.rid != lane.rid and tokens[other.first] != tokens[at]]
    source = stream.rng.choice(others) if others else None
    wrong = tokens[source.first] if source is not None else (tokens[at] + 1) % VOCABULARY
    cell.event = replace(cell.event, tokens=[*tokens[:at], wrong, *tokens[at + 1 :]])
    return Fault(
        slots=[slots[-1]],
        at=cell,
        rid=lane.rid,
        writer=lane.rid,
        found=cell,
        is_damaged=False,
        involved=[source.rid] if source is not None else [],
        variant="relayed" if source is not None else "guessed",
    )


def _read_lanes(stream: Stream, step: Step, state: Ownership) -> list[tuple[Lane, list[int], list[int]]]:
    """Lanes that continue a chain and are read again: with the slots whose tokens stay, and the others."""
    event = stream.cell(step).event
    if not event.chain_positions or event.positions is not None:
        return []
    found = []
    for lane in step.lanes:
        kept = event.accepted[lane.index] if event.accepted is not None else lane.count
        if not lane.prefix or kept < 1 or next_read(stream, lane, step) is None:
            continue
        slots = state.lane_slots(event, lane).tolist()
        if all(slot > 0 and slot not in stream.used for slot in slots):
            found.append((lane, slots[:kept], slots[kept:]))
    return found
