"""Violations and breaches that belong to one cause, before the cause has a name.

Joined are: breaches that touch the same slots or come from the same event; a slot that fails with a breach that
touched it, or whose writer broke a rule; a broken chain with the damage in front of it (law 1); neighbours that
failed together. One fault seen by many readers, rows and steps is one case (law 8).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from kvcanary_cli.kernels.consts import BIT_CHAIN_HASH, BIT_WRITE_POSITION
from kvcanary_cli.ledger.records import Breach, SlotFacts, Writer
from kvcanary_cli.replay.stories import SlotStory

# One mistake that an engine repeats step after step: breaches of one actor are one case.
REPEATING = frozenset(
    {
        "position-drift",
        "length-mismatch",
        "pad-write",
        "write-beyond-length",
        "row-changed-by-other",
        "window-unmapped",
    }
)

# What an offload copied is wrong; the damage shows where its key is reloaded.
STORED_BADLY = frozenset({"offload-unwritten", "offload-foreign"})


@dataclass(kw_only=True, slots=True)
class Case:
    """One cause, yet unnamed.

    Attributes:
        breaches, stories: earliest first.
        shadows: stories of good slots whose chain refers to a damaged one.
        hidden: slots in front of a shadow that somebody else stamped, though no check failed on them (law 2).
        touched: slots that breaches named.
    """

    group: str
    breaches: list[Breach]
    stories: list[SlotStory]
    shadows: list[SlotStory] = field(default_factory=list)
    hidden: list[SlotFacts] = field(default_factory=list)

    @property
    def damaged(self) -> list[SlotStory]:
        """Stories of slots of the main group that are wrong themselves."""
        shadows = {id(story) for story in self.shadows}
        return [s for s in self.stories if s.group == self.group and id(s) not in shadows]

    @property
    def other_group(self) -> list[SlotStory]:
        """The same for the other group of a hybrid pool: the window copies of the damage."""
        shadows = {id(story) for story in self.shadows}
        return [s for s in self.stories if s.group != self.group and id(s) not in shadows]

    @property
    def touched(self) -> set[int]:
        return {slot for breach in self.breaches for slot in touched_slots(breach)}

    def rules(self) -> set[str]:
        """Names of the rules that were broken."""
        return {breach.rule for breach in self.breaches}

    def breach(self, *rules: str) -> Breach | None:
        """The earliest breach of one of these rules."""
        return next((breach for breach in self.breaches if breach.rule in rules), None)

    def before(self, breach: Breach, *rules: str) -> Breach | None:
        """The earliest breach of one of these rules, if it came before `breach`."""
        found = self.breach(*rules)
        return found if found is not None and self.index(found) < self.index(breach) else None

    def index(self, breach: Breach) -> int:
        """Place of a breach of this case; by identity, because breaches hold arrays."""
        return next(i for i, own in enumerate(self.breaches) if own is breach)

    def bits(self) -> int:
        """Every reason seen on damaged slots."""
        bits = 0
        for story in self.damaged:
            bits |= story.bits
        return bits

    def writers(self) -> list[Writer]:
        """Last byte writers of the damaged slots when they first failed, each once."""
        seen: dict[tuple[str | None, int, str], Writer] = {}
        for story in self.damaged:
            writer = story.facts.byte_writer
            if writer is not None:
                seen[writer.name, writer.line, writer.how] = writer
        return list(seen.values())


def touched_slots(breach: Breach) -> set[int]:
    """Slots that a breach names, the row's own entry of a misplaced write included."""
    slots = set(breach.slots.tolist())
    entry = breach.facts.get("row_entry")
    if isinstance(entry, int) and entry > 0:
        slots.add(entry)
    elif isinstance(entry, list):
        slots |= {int(slot) for slot in entry if int(slot) > 0}
    return slots


class _Union:
    """Sets of numbers that grow together."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, a: int, b: int) -> None:
        self._parent[self.find(b)] = self.find(a)


def build_cases(breaches: list[Breach], stories: list[SlotStory]) -> list[Case]:
    """Cases of a run, earliest first."""
    union = _Union(len(breaches) + len(stories))
    by_slot = _breaches_by_slot(breaches)
    _join_breaches(union, breaches, by_slot)
    by_event = _breaches_by_event(breaches)
    at_slot: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, story in enumerate(stories):
        at_slot[story.group, story.slot].append(i)
    for i, story in enumerate(stories):
        node = len(breaches) + i
        for j in _related_breaches(story, breaches, by_slot, by_event):
            union.join(j, node)
        for other in _related_stories(story, stories, at_slot):
            union.join(len(breaches) + other, node)
    groups: dict[int, list[int]] = defaultdict(list)
    for node in range(len(breaches) + len(stories)):
        groups[union.find(node)].append(node)
    cases = [_case(breaches, stories, nodes) for nodes in groups.values()]
    return sorted(cases, key=_first_moment)


def _breaches_by_slot(breaches: list[Breach]) -> dict[tuple[str, int], list[int]]:
    by_slot: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, breach in enumerate(breaches):
        for slot in touched_slots(breach):
            by_slot[breach.group, slot].append(i)
    return by_slot


def _breaches_by_event(breaches: list[Breach]) -> dict[object, list[int]]:
    """Breaches by line, by the key of a bad offload, and by (step, row) of a table that was changed in flight."""
    by_event: dict[object, list[int]] = defaultdict(list)
    for i, breach in enumerate(breaches):
        by_event[breach.line].append(i)
        if breach.rule in STORED_BADLY:
            by_event[breach.facts.get("key")].append(i)
        if breach.rule == "row-changed-by-other":
            for step in (breach.step, breach.step + 1):  # the forward that read the row
                by_event[step, breach.row].append(i)
    return by_event


def _join_breaches(union: _Union, breaches: list[Breach], by_slot: dict[tuple[str, int], list[int]]) -> None:
    for same_slot in by_slot.values():
        for first, second in pairwise(same_slot):
            union.join(first, second)
    last_of: dict[tuple[object, ...], int] = {}
    for i, breach in enumerate(breaches):
        keys: list[tuple[object, ...]] = [("event", breach.line, breach.actor)]
        if breach.rule in REPEATING:
            keys.append(("repeats", breach.rule, breach.actor, breach.row))
        for key in keys:
            if key in last_of:
                union.join(last_of[key], i)
            last_of[key] = i


def _related_breaches(
    story: SlotStory,
    breaches: list[Breach],
    by_slot: dict[tuple[str, int], list[int]],
    by_event: dict[object, list[int]],
) -> Iterable[int]:
    """Breaches that explain why a slot fails: they touched it, what stands before it, or came with its writer."""
    places = [(story.group, story.slot), *((story.group, facts.slot) for facts in story.run_before)]
    if story.full_slot is not None:
        places.append(("full", story.full_slot))
    if points_back(story) and story.first.predecessor > 0:
        places.append((story.group, story.first.predecessor))
    for place in places:
        for j in by_slot.get(place, ()):
            if breaches[j].step <= story.first.step or breaches[j].rule == "publish-token-mismatch":
                yield j
    lines = {w.line for w in (story.facts.byte_writer, story.facts.stamp_writer) if w is not None}
    for line in lines:
        for j in by_event.get(line, ()):
            if breaches[j].row is None or breaches[j].row == story.first.row:
                yield j
    if story.facts.byte_writer is not None and story.facts.byte_writer.id is not None:
        yield from by_event.get(story.facts.byte_writer.id, ())
    if points_back(story) and story.facts.stamp_writer is not None:
        yield from by_event.get((story.facts.stamp_writer.step, story.first.row), ())


def _related_stories(
    story: SlotStory, stories: list[SlotStory], at_slot: dict[tuple[str, int], list[int]]
) -> Iterable[int]:
    """Stories of what stands before a slot, and of neighbours that failed together with it."""
    earlier = list(story.run_before)
    if story.before is not None and points_back(story):
        earlier.append(story.before)
    for facts in earlier:
        for found in at_slot.get((story.group, facts.slot), ()):
            other = stories[found]
            if other.facts.epoch == facts.epoch and other.first.step <= story.first.step:
                yield found
    for slot in (story.slot - 1, story.slot + 1):
        for found in at_slot.get((story.group, slot), ()):
            if failed_together(story, stories[found]):
                yield found
    if story.full_slot is not None:
        for found in at_slot.get(("full", story.full_slot), ()):
            if stories[found].first.step <= story.first.step:
                yield found


def failed_together(a: SlotStory, b: SlotStory) -> bool:
    """Whether two slots first failed in the same launch, for the same reasons, by the same writer."""
    same_writer = _writer_line(a) == _writer_line(b)
    is_copy = a.facts.byte_writer is not None and a.facts.byte_writer.id is not None
    return a.first.step == b.first.step and a.bits == b.bits and (same_writer or not is_copy)


def _writer_line(story: SlotStory) -> int | None:
    return story.facts.byte_writer.line if story.facts.byte_writer is not None else None


def points_back(story: SlotStory) -> bool:
    """Whether a slot's failure may come from the slot before it alone: its chain, or where its chain goes on."""
    return story.bits != 0 and story.bits & ~(BIT_CHAIN_HASH | BIT_WRITE_POSITION) == 0


def is_shadow(story: SlotStory, bad_slots: set[int]) -> bool:
    """Law 1: only the chain fails, and what it refers to was changed after this slot was stamped."""
    if not points_back(story) or story.first.predecessor <= 0:
        return False
    if story.first.predecessor in bad_slots or story.run_before:
        return True
    before, own = story.before, story.facts.stamp_writer
    if before is None or before.stamp_writer is None:
        return before is not None and not before.is_written
    return own is not None and before.stamp_writer.line > own.line


def _case(breaches: list[Breach], stories: list[SlotStory], nodes: list[int]) -> Case:
    own_breaches = sorted((breaches[n] for n in nodes if n < len(breaches)), key=lambda b: (b.step, b.line))
    own_stories = [stories[n - len(breaches)] for n in nodes if n >= len(breaches)]
    own_stories.sort(key=lambda s: (s.first.step, s.first.position, s.slot))
    group = _main_group(own_breaches, own_stories)
    case = Case(group=group, breaches=own_breaches, stories=own_stories)
    bad: dict[str, set[int]] = defaultdict(set)
    for story in own_stories:
        bad[story.group].add(story.slot)
    for breach in own_breaches:
        bad[breach.group] |= touched_slots(breach)
    for story in own_stories:
        if is_shadow(story, bad[story.group]) or _from_foreign_seed(story, own_breaches):
            case.shadows.append(story)
    failing = {s.slot for s in case.damaged}
    hidden = {
        facts.slot: facts
        for s in case.shadows
        if s.group == group
        for facts in s.run_before
        if facts.slot not in failing
    }
    case.hidden = [hidden[slot] for slot in sorted(hidden)]
    return case


def _from_foreign_seed(story: SlotStory, breaches: list[Breach]) -> bool:
    """A good slot whose chain goes on from another request's: its row was foreign while it was written."""
    writer = story.facts.stamp_writer
    if writer is None or not points_back(story):
        return False
    changed = [b for b in breaches if b.rule == "row-changed-by-other"]
    return any(writer.name in b.victims and b.step <= writer.step <= b.step + 1 for b in changed)


def _main_group(breaches: list[Breach], stories: list[SlotStory]) -> str:
    """The group whose slots an incident names: the root breach's, else the full group if it failed at all."""
    if breaches:
        return breaches[0].group
    groups = {story.group for story in stories}
    return "full" if "full" in groups else groups.pop()


def _first_moment(case: Case) -> tuple[int, int, int]:
    steps = [(breach.step, 0, breach.line) for breach in case.breaches[:1]]
    steps += [(story.first.step, 1, story.slot) for story in case.stories[:1]]
    return min(steps)
