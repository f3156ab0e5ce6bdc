"""Prefixes in the cache: those of the trace, and those that guests publish and take out again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvcanary_cli.faults.guests import Guest, array
from kvcanary_cli.faults.ownership import CACHE, CHAIN_HEAD, Ownership
from kvcanary_cli.faults.scenes import Scene, find_scene
from kvcanary_cli.faults.stream import Cell, Fault, NotApplicable, Stream
from kvcanary_cli.sim.tokens import VOCABULARY
from kvcanary_cli.trace import events as ev

NO_PREFIX = "no prefix stays in the prefix cache long enough"


@dataclass(slots=True)
class Prefix:
    """A chain of cached slots from position 0 on, the tokens in them, and requests that hold its last slot."""

    slots: list[int]
    tokens: list[int]
    holders: list[str]


def cached_prefixes(stream: Stream, state: Ownership, begin: int, end: int, units: int) -> list[Prefix]:
    """Prefixes of so many units that the cache holds, and goes on holding between two places."""
    gone: set[int] = set()
    for cell in stream.cells[begin : end + 1]:
        if isinstance(cell.event, ev.Evict):
            gone.update(cell.event.slots.tolist())
    last = units * stream.unit - 1
    ends = [slot for slot, (position, _) in state.cached.items() if position == last]
    chains = [chain for slot in sorted(ends) if (chain := _chain(state, slot, last))]
    return [
        Prefix(chain, _tokens(state, chain), sorted(state.holders_of(chain[-1]) - {CACHE}))
        for chain in chains
        if all(_is_good(stream, state, slot) and slot not in gone for slot in chain)
    ]


def quiet_units(stream: Stream, state: Ownership, begin: int) -> list[list[int]]:
    """Units that only the cache holds, that are swept after a place, and that no event names any more.

    The first unit of a prefix is left out: a foreign chain that starts there too looks right to a sweep.
    """
    later = [cell.event for cell in stream.cells[begin:]]
    if not any(isinstance(event, ev.Sweep) for event in later):
        return []
    named = set(stream.used)
    for event in later:
        if isinstance(event, ev.Alloc | ev.Share | ev.Publish | ev.Evict | ev.Free | ev.Hold):
            named.update(event.slots.tolist())
    unit = stream.unit
    chains = [
        [slot for slot in _chain(state, last, position)[-unit:] if _is_good(stream, state, slot)]
        for last, (position, _) in sorted(state.cached.items())
        if position >= unit and position % unit == unit - 1
    ]
    return [
        chain
        for chain in chains
        if len(chain) == unit and not any(s in named or state.holders_of(s) != {CACHE} for s in chain)
    ]


def _is_good(stream: Stream, state: Ownership, slot: int) -> bool:
    has_window = not stream.has_window or slot in state.swa_of
    return slot in state.content and slot not in stream.used and has_window


def _chain(state: Ownership, slot: int, position: int) -> list[int]:
    """Slots from the head to `slot`, which is cached at `position`; empty where a link is not known."""
    chain: list[int] = []
    while slot != CHAIN_HEAD:
        at, before = state.cached.get(slot, (-1, 0))
        if at != position:
            return []
        chain.append(slot)
        slot, position = before, position - 1
    return chain[::-1]


def _tokens(state: Ownership, chain: Sequence[int]) -> list[int]:
    tokens = []
    for slot in chain:
        rid, position = state.content[slot]
        tokens += state.tokens(rid, position, position + 1)
    return tokens


def prefix_scene(stream: Stream, units: int, *, prefix_units: int, steps: int = 3) -> tuple[Scene, Prefix]:
    """A stretch with room for guests during which the cache holds a prefix.

    Raises: NotApplicable where there is none.
    """
    if stream.header.token_position_offset:
        raise NotApplicable("its slots hold the tokens of the position after, so that prefixes can't be told")
    found: dict[int, list[Prefix]] = {}

    def fits(scene: Scene, state: Ownership) -> bool:
        begin, end = scene.steps[0].index, scene.steps[-1].index
        found[begin] = cached_prefixes(stream, state, begin, end, prefix_units)
        return bool(found[begin])

    scene = find_scene(stream, units, steps=steps, fits=fits, lack=NO_PREFIX)
    return scene, stream.rng.choice(found[scene.steps[0].index])


@dataclass(kw_only=True, slots=True)
class Lending:
    """A guest that publishes what it wrote, and one that reads it as a prefix hit.

    Attributes:
        slots: what is lent, whole units from position 0.
        published: the event of the lender; `continued` that of the reader, for a unit that it wrote.
    """

    scene: Scene
    lender: Guest
    reader: Guest
    slots: list[int]
    published: Cell
    continued: Cell


def lending(stream: Stream, key: dict[str, str] | None = None) -> Lending:
    """Dress: a guest publishes two units, another one shares them, writes a unit, publishes it, and decodes.

    What they published is evicted when both have left.
    """
    scene = find_scene(stream, 4, columns=4)
    lender = scene.guest("lender", 2)
    slots = list(lender.own)
    offset = stream.header.token_position_offset
    reader = scene.guest("reader", 2, shared=slots, tokens=lender.tokens[: len(slots) + offset])
    lender.enter(scene.before)
    lender.forward(scene.before, len(slots))
    (published,) = scene.before(
        ev.Publish(rid=lender.rid, at=0, slots=array(slots), tokens=lender.tokens[: len(slots)], key=key)
    )
    reader.enter(scene.before)
    reader.forward(scene.before, stream.unit + 1)
    own = reader.own[: stream.unit]
    (continued,) = scene.before(
        ev.Publish(rid=reader.rid, at=len(slots), slots=array(own), after=slots[-1], key=key)
    )
    for cell in scene.cells:
        reader.decode(cell)
    lender.leave(scene.after)
    reader.leave(scene.after)
    scene.after(ev.Evict(slots=array(own)), ev.Evict(slots=array(slots)))
    return Lending(
        scene=scene, lender=lender, reader=reader, slots=slots, published=published, continued=continued
    )


def uncomputed_prefix(stream: Stream) -> Generator[None, None, Fault]:
    """K19: a prefix is published and read although the forward that should have written it never ran.

    Found by: `publish-unwritten` when it is published, `share-unwritten` when it is read; the never-stamped
    look on fresh slots (`chain_hash` on the first, `position` from position 1 on, `verify_token`), a foreign
    chain on recycled ones.

    Silent: everything else; the reader's first own slot is a shadow (`write_position`).
    """
    what = lending(stream)
    yield
    stream.drop(*what.lender.forwards)
    share = what.reader.cells["share"]
    return Fault(
        slots=what.slots, at=share, rid=what.reader.rid, found=share, involved=[what.lender.rid, CACHE]
    )


def key_collision(stream: Stream) -> Generator[None, None, Fault]:
    """K20: a lookup returns the intact prefix of something else.

    Found by: other tokens: `share-token-mismatch` at the hit, and `verify_token` from the first token that
    differs. Same tokens under another adapter: `key-mismatch` when the reader publishes what follows.

    Silent: sweeps; with another adapter every check. No slot is damaged.
    """
    what = lending(stream, key={"adapter": "base"})
    yield
    reader = what.reader
    if stream.rng.random() < 0.5:
        cell = what.continued
        cell.event = replace(cell.event, key={"adapter": "tuned"})
        return Fault(
            slots=what.slots,
            at=cell,
            rid=reader.rid,
            found=cell,
            is_damaged=False,
            involved=[what.lender.rid, CACHE],
            variant="key",
        )
    offset = stream.header.token_position_offset
    first = stream.rng.randrange(len(what.slots))
    truth = reader.cells["truth"]
    tokens = list(truth.event.tokens)
    for at in range(first + offset, len(what.slots) + offset):
        tokens[at] = (tokens[at] + 1) % VOCABULARY
    truth.event = replace(truth.event, tokens=tokens)
    share = reader.cells["share"]
    return Fault(
        slots=what.slots[first:],
        at=share,
        rid=reader.rid,
        found=share,
        is_damaged=False,
        involved=[what.lender.rid, CACHE],
        side=what.slots[:first],
        variant="tokens",
    )
