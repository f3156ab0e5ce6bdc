"""From cases to incidents: every rule is heard, the best founded kind wins, the others are kept as evidence.

The order follows the taxonomy: ledger breaches first and at the earliest event, then canary bits by slot without
their shadows, then the last writer of each damaged slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvcanary_cli.ledger.records import Breach, SlotFacts, Writer
from kvcanary_cli.replay.cases import Case, build_cases
from kvcanary_cli.replay.incidents import Evidence, Incident, Opinion, Strength
from kvcanary_cli.replay.rules import RULES, Context, Rule
from kvcanary_cli.replay.stories import SlotStory

UNKNOWN = "unknown"

# Kinds that leave every slot as its owner wrote it: the wrong slots were read, or the right ones faithfully hold
# a token that was wrong from the start.
INTACT = frozenset({"K10", "K18", "K20"})

# Breaches whose slots were overwritten by the event itself, whether or not a check saw it.
OVERWRITING = frozenset(
    {
        "write-foreign",
        "write-shared",
        "write-outside-row",
        "write-after-free",
        "write-beyond-length",
        "xfer-to-old-epoch",
        "pad-write",
        "kv-foreign",
        "two-writers",
        "position-drift",
    }
)


def diagnose(
    breaches: list[Breach],
    stories: list[SlotStory],
    context: Context,
    rules: Mapping[str, Rule] = RULES,
) -> list[Incident]:
    """Incidents of a run, by the earliest of breach, damage and first failed check.

    Args:
        breaches: the ledger's, in order.
        stories: slots that failed a check.
        rules: rule of each kind; tests leave some out.
    """
    incidents = [_incident(case, context, rules) for case in build_cases(breaches, stories)]
    return sorted(incidents, key=lambda i: (i.first_step, i.slots[:1]))


def _incident(case: Case, context: Context, rules: Mapping[str, Rule]) -> Incident:
    opinions = [opinion for rule in rules.values() if (opinion := rule(case, context)) is not None]
    best = _choose(opinions, case)
    slots, is_damaged = _damaged_slots(case, best)
    is_damaged = is_damaged and (best is None or best.kind not in INTACT)
    shadows = sorted({s.slot for s in case.shadows if s.group == case.group} - set(slots))
    example = _example(case, slots)
    facts = example.facts if example is not None else (case.hidden[0] if case.hidden else None)
    writer = _named_writer(best) if _names_another(best, facts) else _writer(case, facts)
    return Incident(
        kind=best.kind if best is not None else UNKNOWN,
        strength=best.strength if best is not None else Strength.UNKNOWN,
        evidence=_evidence(case, best, opinions),
        group=case.group,
        slots=slots,
        is_damaged=is_damaged,
        shadows=shadows,
        other_slots=sorted({story.slot for story in case.other_group}),
        breaches=case.breaches,
        stories=case.stories,
        damaged=_damaged_step(case, writer, is_damaged),
        seen=case.stories[0] if case.stories else None,
        victims=_victims(case, best, writer),
        writer=writer,
        facts=facts,
    )


def _choose(opinions: Iterable[Opinion], case: Case) -> Opinion | None:
    """The well founded opinion that rests on the earliest breach; a weak one only when there is no other."""

    def order(opinion: Opinion) -> tuple[bool, int, int, int, str]:
        at = len(case.breaches) if opinion.root is None else case.index(opinion.root)
        return opinion.strength < Strength.STRONG, at, -opinion.strength, opinion.rank, opinion.kind

    return min((o for o in opinions if o.strength > Strength.UNKNOWN), key=order, default=None)


def _evidence(case: Case, best: Opinion | None, opinions: list[Opinion]) -> tuple[Evidence, ...]:
    own = best.evidence if best is not None else _unexplained(case)
    against = tuple(
        e for opinion in opinions if opinion is not best for e in opinion.evidence if not e.is_for
    )
    return own + against


def _unexplained(case: Case) -> tuple[Evidence, ...]:
    """What is known of a case that no rule explains: the rules of ownership that were broken, if any."""
    if not case.breaches:
        text = "no ownership event that would explain it is recorded"
        return (Evidence(UNKNOWN, "no-event", text),)
    first = case.breaches[0]
    return (Evidence(UNKNOWN, first.rule, f"ledger: {first.rule} by {first.actor or 'nobody named'}"),)


def _damaged_slots(case: Case, best: Opinion | None) -> tuple[list[int], bool]:
    """Slots to name, and whether their KV is wrong; without damage, what the root breach is about."""
    if best is not None and best.slots is not None:
        return sorted(best.slots), True
    slots = {story.slot for story in case.damaged} | {facts.slot for facts in case.hidden}
    for breach in case.breaches:
        if breach.rule in OVERWRITING and breach.group == case.group:
            slots |= set(breach.slots.tolist())
    if slots:
        return sorted(slots), True
    if case.breaches:
        return case.breaches[0].slots.tolist(), False
    # only shadows, and nobody known in front of them: what their chains refer to
    return sorted({s.first.predecessor for s in case.shadows if s.first.predecessor > 0}), True


def _example(case: Case, slots: list[int]) -> SlotStory | None:
    chosen = set(slots)
    return next((story for story in case.damaged if story.slot in chosen), next(iter(case.stories), None))


def _writer(case: Case, facts: SlotFacts | None) -> Writer | None:
    """Who wrote the damaged slot last, if that write is part of the story: not if bytes and stamp are its own."""
    if facts is None:
        return None
    wrote, stamped = facts.byte_writer, facts.stamp_writer
    is_one_write = wrote is not None and stamped is not None and wrote.line == stamped.line
    if is_one_write and not case.breaches and wrote is not None and wrote.held and wrote.id is None:
        return None
    latest = [w for w in (facts.byte_writer, facts.stamp_writer) if w is not None]
    return max(latest, key=lambda w: w.line, default=None)


def _names_another(best: Opinion | None, facts: SlotFacts | None) -> bool:
    """Whether the cause names a writer who is not the one that the slot remembers: it wrote the table, say."""
    if best is None or best.writer is None or best.root is None:
        return False
    known = [w for w in (facts.byte_writer, facts.stamp_writer) if w is not None] if facts is not None else []
    return all(writer.name != best.writer for writer in known)


def _named_writer(best: Opinion | None) -> Writer | None:
    """The writer that the root breach names."""
    if best is None or best.root is None:
        return None
    root = best.root
    how = str(root.facts.get("how", "forward"))
    return Writer(
        name=best.writer,
        step=root.step,
        line=root.line,
        how=how,
        in_row=False,
        held=False,
        id=None,
        position=None,
    )


def _damaged_step(case: Case, writer: Writer | None, is_damaged: bool) -> tuple[int | None, int] | None:
    """Step of the offending write, or the window in which bytes changed by nobody's hand."""
    if not is_damaged:
        return None
    for breach in case.breaches:
        if breach.rule in OVERWRITING:
            return breach.step, breach.step
    story = case.damaged[0] if case.damaged else case.stories[0] if case.stories else None
    if story is None:
        return case.breaches[0].step, case.breaches[0].step
    if case.breaches and writer is not None:
        return writer.step, writer.step
    if case.breaches:
        return case.breaches[0].step, case.breaches[0].step
    return _window(story)


def _window(story: SlotStory) -> tuple[int | None, int]:
    """Between the last good check (or the write) and the first bad one."""
    writer = story.facts.stamp_writer
    known = [
        step for step in (story.facts.last_checked_step, writer.step if writer else None) if step is not None
    ]
    good = max((step for step in known if step <= story.first.step), default=None)
    return good, story.first.step


def _victims(case: Case, best: Opinion | None, writer: Writer | None) -> list[str]:
    """Holders of the slots that are not the ones who did it."""
    if best is not None and best.victim is not None:
        return [best.victim]
    guilty = {best.writer} if best is not None else set()
    guilty |= {breach.actor for breach in case.breaches if breach.rule in OVERWRITING}
    named: list[str] = []
    for breach in case.breaches:
        named += [name for name in breach.victims if name not in guilty]
    for story in case.damaged:
        named += [holder.name for holder in story.facts.holders if holder.name not in guilty]
        named += [rid for rid in story.readers if rid not in guilty]
    return list(dict.fromkeys(named))
