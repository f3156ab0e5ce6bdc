"""Facts about a request trace: how much, how fast, how much of it repeats; one pass, nothing simulated."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvcanary_cli.trace.requests import Request

TELL_EVERY = 1 << 14
"""Requests between two calls of `on_progress`."""


@dataclass(kw_only=True, slots=True)
class Lengths:
    """Tokens of prompts, outputs or both together; `longest` names the first request that has `most`."""

    total: int = 0
    least: int = 0
    most: int = 0
    longest: str = ""

    def add(self, tokens: int, rid: str) -> None:
        """One more request."""
        self.total += tokens
        if not self.longest:
            self.least, self.most, self.longest = tokens, tokens, rid
        self.least = min(self.least, tokens)
        if tokens > self.most:
            self.most, self.longest = tokens, rid


@dataclass(kw_only=True, slots=True)
class Peak:
    """The most requests, or tokens, of any moment, and the first such moment in seconds from the start."""

    most: int = 0
    at_s: float = 0.0

    def add(self, value: int, at_s: float) -> None:
        """One more moment."""
        if value > self.most:
            self.most, self.at_s = value, at_s


@dataclass(kw_only=True, slots=True)
class Prefixes:
    """What a prefix cache that never evicts could reuse: blocks of earlier prompts, not of their outputs.

    Attributes:
        requests: that have block ids.
        references, distinct: ids in all prompts, and different ones among them.
        partial: ids of last, partial blocks, which an engine that shares whole blocks can't reuse.
        reused_blocks, reused_tokens: whole blocks at the start of a prompt, all of them in the same order at the
            start of an earlier prompt.
        reusing: requests that reuse at least one.
    """

    requests: int = 0
    references: int = 0
    distinct: int = 0
    partial: int = 0
    reused_blocks: int = 0
    reused_tokens: int = 0
    reusing: int = 0


@dataclass(kw_only=True, slots=True)
class RequestFacts:
    """What is in a request trace.

    Attributes:
        requests: how many.
        prompt, output, both: tokens a request.
        without_output: requests that generate nothing.
        last_arrival_s: of the last request; the first one arrives at 0.
        in_one_second: arrivals in any window of one second.
        at_once, tokens_at_once: requests, and their prompt and output tokens, that arrive at the very same time.
            All of them are waiting or running at that moment, on a server of any speed.
        waiting: requests that wait for an earlier one to end, and may arrive later than their time says.
        sessions, in_sessions, most_turns: conversations, their requests, the most of one.
        with_tokens: requests whose prompt's token ids are in the file.
        prefixes: None where no request has block ids.
    """

    requests: int = 0
    prompt: Lengths = field(default_factory=Lengths)
    output: Lengths = field(default_factory=Lengths)
    both: Lengths = field(default_factory=Lengths)
    without_output: int = 0
    last_arrival_s: float = 0.0
    in_one_second: Peak = field(default_factory=Peak)
    at_once: Peak = field(default_factory=Peak)
    tokens_at_once: Peak = field(default_factory=Peak)
    waiting: int = 0
    sessions: int = 0
    in_sessions: int = 0
    most_turns: int = 0
    with_tokens: int = 0
    prefixes: Prefixes | None = None


class _Arrivals:
    """Peaks of arrivals; keeps the times of one second only. Requests that wait for another are left out."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._second: deque[float] = deque()
        self._now = -1.0
        self._count = self._tokens = 0

    def add(self, request: Request) -> None:
        now = request.arrival_s
        if now != self._now:
            self._now, self._count, self._tokens = now, 0, 0
        self._count += 1
        self._tokens += request.input_length + request.output_length
        self._facts.at_once.add(self._count, now)
        self._facts.tokens_at_once.add(self._tokens, now)
        self._second.append(now)
        while self._second[0] <= now - 1:
            self._second.popleft()
        self._facts.in_one_second.add(len(self._second), self._second[0])


class _PrefixCounter:
    """Which blocks an earlier prompt had; holds a number for every different id and prefix."""

    def __init__(self) -> None:
        self.found = Prefixes()
        self._ids: set[int] = set()
        self._prefixes: set[int] = set()

    def add(self, request: Request) -> None:
        found, ids = self.found, request.block_ids
        whole = min(len(ids), request.input_length // request.block_size)
        found.requests += 1
        found.references += len(ids)
        found.partial += len(ids) - whole
        self._ids.update(ids)
        found.distinct = len(self._ids)
        prefix, reused, is_known = 0, 0, True
        for block_id in ids[:whole]:
            # the ids up to here in one number: an id by itself may name content that stands anywhere
            prefix = hash((prefix, block_id))
            is_known = is_known and prefix in self._prefixes
            reused += is_known
            self._prefixes.add(prefix)
        found.reused_blocks += reused
        found.reused_tokens += reused * request.block_size
        found.reusing += reused > 0


def inspect_requests(
    requests: Iterable[Request], *, on_progress: Callable[[int, int], None] = lambda requests, tokens: None
) -> RequestFacts:
    """The facts of requests in order of arrival.

    Args:
        on_progress: gets requests and tokens so far, now and then.
    """
    facts = RequestFacts()
    arrivals, prefixes, sessions = _Arrivals(facts), _PrefixCounter(), Counter[str]()
    for request in requests:
        tokens = request.input_length + request.output_length
        facts.requests += 1
        facts.prompt.add(request.input_length, request.rid)
        facts.output.add(request.output_length, request.rid)
        facts.both.add(tokens, request.rid)
        facts.without_output += request.output_length == 0
        facts.with_tokens += request.prompt_tokens is not None
        facts.last_arrival_s = request.arrival_s
        if request.after is not None:
            facts.waiting += 1
        else:
            arrivals.add(request)
        if request.session is not None:
            sessions[request.session] += 1
        if request.block_ids:
            prefixes.add(request)
        if facts.requests % TELL_EVERY == 0:
            on_progress(facts.requests, facts.both.total)
    facts.sessions, facts.in_sessions = len(sessions), sessions.total()
    facts.most_turns = max(sessions.values(), default=0)
    if prefixes.found.requests:
        facts.prefixes = prefixes.found
    return facts
