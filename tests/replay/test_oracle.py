"""A replay computes what the plain-Python oracle says, over random streams of legal and illegal events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from kvcanary_cli.errors import InputError
from kvcanary_cli.kernels.consts import HashMode
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.run import run_replay
from kvcanary_cli.replay.violations import ViolationBatch
from kvcanary_cli.trace import events as ev
from kvcanary_cli.trace.writer import encode_event
from tests.replay import oracle, oracle_kernels
from tests.replay.driving import CPU
from tests.replay.oracle import Oracle, RefusedError
from tests.replay.oracle_streams import Stream, random_header

FAST_SEEDS = 40
SLOW_SEEDS = 1200
RING = 1 << 14  # rows; a stream never fills it
FIRST_LINE = 2  # the header has line 1


@dataclass(frozen=True)
class Case:
    """One random trace and how to replay it."""

    header: ev.Header
    events: list[ev.Event]
    mode: HashMode
    sweep_interval: int
    is_affine: bool = False


def case_of(seed: int, is_affine: bool = False) -> Case:
    draw = random.Random(seed)
    header = random_header(draw)
    events = Stream(draw, header).run(draw.randint(40, 80))
    mode = draw.choice((HashMode.ALL, HashMode.ALL, HashMode.PARTIAL, HashMode.NONE))
    return Case(header, events, mode, draw.choice((0, 0, 3)), is_affine)


@dataclass
class Told:
    """What a replay reports: sorted violation rows by line, planned verify entries, entries counted by tag."""

    rows: dict[int, list[tuple[int, ...]]]
    total: int = 0
    by_tag: dict[int, int] | None = None
    refused: bool = False

    def difference(self, other: Told) -> str | None:
        """The first thing on which the two disagree, in words."""
        for line in sorted(self.rows.keys() | other.rows.keys()):
            mine, yours = Counter(self.rows.get(line, [])), Counter(other.rows.get(line, []))
            if mine != yours:
                extra, missing = sorted((mine - yours).elements()), sorted((yours - mine).elements())
                return f"line {line}: only here {extra}, only there {missing}"
        if self.refused != other.refused:
            return f"refused: {self.refused} here, {other.refused} there"
        if self.refused:
            return None  # a refused run has no totals
        if self.total != other.total:
            return f"planned entries: {self.total} here, {other.total} there"
        if self.by_tag is not None and other.by_tag is not None and self.by_tag != other.by_tag:
            return f"entries verified and written by tag: {self.by_tag} here, {other.by_tag} there"
        return None


def by_oracle(case: Case, events: Sequence[ev.Event]) -> Told:
    oracle = Oracle(case.header, mode=int(case.mode), sweep_interval=case.sweep_interval)
    told = Told({})
    counts: Counter[int] = Counter()
    try:
        for line, event in enumerate(events, FIRST_LINE):
            for step in oracle.feed(line, event):
                told.total += sum(step.planned.values())
                counts.update(step.planned)
                counts.update(step.written)
                told.rows.setdefault(line, []).extend(step.rows)
    except RefusedError:
        told.refused = True
    told.by_tag = dict(+counts)
    return told


def by_replay(case: Case, events: Sequence[ev.Event], *, incremental: bool) -> Told:
    told, now = Told({}), FIRST_LINE

    def lines() -> Iterator[tuple[int, ev.Event]]:
        nonlocal now
        for event in events:
            yield now, event
            now += 1

    def take(batch: ViolationBatch) -> None:
        assert batch.lost == 0
        told.rows.setdefault(now, []).extend(map(tuple, batch.rows.tolist()))

    options = ReplayOptions(
        device=CPU,
        hash_mode=case.mode,
        sweep_interval=case.sweep_interval,
        ring=RING,
        incremental=incremental,
        is_affine=case.is_affine,
        threads=1,
    )
    try:
        result = run_replay(case.header, lines(), options, path="t.jsonl", on_violations=take)
    except InputError:
        told.refused = True
        return told
    told.total = result.totals.entries
    if not incremental:  # an incremental run launches fewer, and counts the others as reused
        told.by_tag = {tag: count for tag, count in enumerate(result.counters.entries) if count}
    assert result.counters.missing() == []
    return told


Difference = Callable[[Case, Sequence[ev.Event]], str | None]


def cpu_difference(case: Case, events: Sequence[ev.Event]) -> str | None:
    told = by_oracle(case, events)
    for incremental in (False, True):
        found = told.difference(by_replay(case, events, incremental=incremental))
        if found:
            return (
                f"{'incremental' if incremental else 'full'} verification, oracle here, replay there: {found}"
            )
    return None


def shrunk(case: Case, differs: Difference) -> list[ev.Event]:
    """Events of the case that still differ when no single one of them can be left out."""
    events, at = list(case.events), 0
    while at < len(events):
        fewer = events[:at] + events[at + 1 :]
        if _differs(case, fewer, differs):
            events = fewer
        else:
            at += 1
    return events


def _differs(case: Case, events: Sequence[ev.Event], differs: Difference) -> bool:
    try:
        return differs(case, events) is not None
    except Exception:  # a crash is another matter than the difference that is being shrunk
        return False


def check(seed: int, differs: Difference = cpu_difference, *, is_affine: bool = False) -> None:
    case = case_of(seed, is_affine)
    if differs(case, case.events) is None:
        return
    events = shrunk(case, differs)
    found = differs(case, events) or differs(case, case.events)
    text = "\n".join(encode_event(event).decode() for event in [case.header, *events])
    pytest.fail(f"seed {seed}, mode {case.mode.name}, sweep interval {case.sweep_interval}: {found}\n{text}")


@pytest.mark.parametrize("seed", range(FAST_SEEDS))
def test_replay_agrees_with_the_oracle(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(FAST_SEEDS))
def test_affine_chains_agree_with_the_oracle(seed, monkeypatch):
    for module in (oracle, oracle_kernels):
        monkeypatch.setattr(module, "chain", oracle_kernels.affine_chain)
    check(seed, is_affine=True)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST_SEEDS, SLOW_SEEDS, 40))
def test_replay_agrees_with_the_oracle_on_many_seeds(start):
    for seed in range(start, start + 40):
        check(seed)
