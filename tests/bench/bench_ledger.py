"""Time the ledger: decoded events a second, over a pool of 1 M slots, by kind of event.

Run by hand: `python tests/bench/bench_ledger.py [ROUNDS]`; pytest does not collect it. One core is used. Only the
ledger's own calls are timed, with the processor's clock, so that other work on the machine does not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay import rows
from kvcanary_cli.replay.forwards import decode_forward
from kvcanary_cli.replay.state import new_state
from kvcanary_cli.runtime.layout import layout_of
from kvcanary_cli.trace import events as ev

POOL = 1 << 20
PAGE = 16
LANES = 16
WIDTH = 128
STEPS = 64
WARM_UP = 2

HANDLERS = {
    ev.Bind: rows.bind,
    ev.Unbind: rows.unbind,
    ev.Share: rows.share,
    ev.Map: rows.map_row,
}


def requests(rounds: int, rng: np.random.Generator) -> Iterator[ev.Event]:
    """Rounds of LANES requests with tokens of their own slots: prompt of a page, shared or not, STEPS decodes.

    Slots are scattered over the pool, pages for prompts and single ones for decodes.
    """
    pages = iter((1 + rng.permutation(POOL // PAGE // 2 - 1)).tolist() * (1 + rounds))
    singles = iter((POOL // 2 + rng.permutation(POOL // 2)).tolist() * (1 + rounds))
    cached: list[np.ndarray] = []
    for number in range(rounds):
        held: list[list[np.ndarray]] = []
        for lane in range(LANES):
            rid, row = f"r{number}.{lane}", lane + 1
            yield ev.Bind(rid=rid, row=row)
            prompt = next(pages) * PAGE + np.arange(PAGE)
            held.append([prompt])
            if lane < len(cached):
                yield ev.Share(rid=rid, at=0, slots=cached[lane])
                held[lane].append(cached[lane])
            at = PAGE if lane < len(cached) else 0
            yield ev.Alloc(to=rid, slots=prompt)
            yield ev.Map(row=row, at=at, slots=prompt)
            yield ev.Forward(rows=[row], prefix=[at], lens=[PAGE], slots=prompt)
            yield ev.Publish(rid=rid, at=at, slots=prompt)
        start = 2 * PAGE if cached else PAGE
        for step in range(STEPS):
            slots = np.array([next(singles) for _ in range(LANES)])
            for lane in range(LANES):
                yield ev.Alloc(to=f"r{number}.{lane}", slots=slots[lane : lane + 1])
                yield ev.Map(row=lane + 1, at=start + step, slots=slots[lane : lane + 1])
                held[lane].append(slots[lane : lane + 1])
            yield ev.Forward(rows=list(range(1, LANES + 1)), prefix=[start + step] * LANES, slots=slots)
        for lane in range(LANES):
            for slots in held[lane]:
                yield ev.Free(by=f"r{number}.{lane}", slots=slots)
            yield ev.Unbind(row=lane + 1)
            yield ev.End(rid=f"r{number}.{lane}", why="done")
        for slots in cached:
            yield ev.Evict(slots=slots)
        cached = [slots[0] for slots in held]


class Timed:
    """A ledger beside replay state; adds up what its calls cost, by kind of event."""

    def __init__(self, header: ev.Header) -> None:
        self.state = new_state(layout_of(header), track_changes=False)
        self.ledger = Ledger(header, self.state.table, self.state.swa_map, self.state.expected.tokens)
        self.steps = 0
        self.ns: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def feed(self, line: int, event: ev.Event) -> None:
        """One event, in the order of a replay."""
        clock = time.process_time_ns
        if isinstance(event, ev.Forward):
            decoded = decode_forward(event, line, self.state, "bench")
            start = clock()
            self.ledger.forward(self.steps, decoded)
            self.ledger.forward_done(self.steps, decoded)
            spent = clock() - start
            self.steps += 1
        else:
            start = clock()
            self.ledger.event(max(0, self.steps - 1), line, event)
            spent = clock() - start
            if type(event) in HANDLERS:
                HANDLERS[type(event)](self.state, event)
        name = type(event).__name__.lower()
        self.ns[name] = self.ns.get(name, 0) + spent
        self.counts[name] = self.counts.get(name, 0) + 1


def main() -> None:
    """Run some rounds to compile, then time the rest."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    pool = ev.Pool(slots=POOL, rows=LANES + 1, row_width=WIDTH)
    timed = Timed(ev.Header(format="kvcanary-trace", version=1, pool=pool))
    begun = 0
    for line, event in enumerate(requests(WARM_UP + rounds, np.random.default_rng(0)), 2):
        begun += isinstance(event, ev.Bind) and event.row == 1
        if begun <= WARM_UP:
            timed.ns.clear()
            timed.counts.clear()
        timed.feed(line, event)
    if timed.ledger.breaches:
        raise SystemExit(f"the stream has breaches: {timed.ledger.breaches[:3]}")
    for name in sorted(timed.counts, key=lambda name: -timed.ns[name]):
        count = timed.counts[name]
        print(f"{name:>8}: {count:>9,} events, {timed.ns[name] / count / 1e3:5.2f} us each")
    total, count = sum(timed.ns.values()), sum(timed.counts.values())
    print(
        f"{'all':>8}: {count:>9,} events, {total / count / 1e3:5.2f} us each, {count / total * 1e9:,.0f} events/s"
    )


if __name__ == "__main__":
    main()
