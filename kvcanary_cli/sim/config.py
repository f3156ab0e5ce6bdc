"""Settings of the scheduler model, and the trace header that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from kvcanary_cli.capacity import formula
from kvcanary_cli.errors import UsageError
from kvcanary_cli.sim.costs import CostModel
from kvcanary_cli.trace.events import Capacities, Group, Header, Pool, Source
from kvcanary_cli.trace.header import FORMAT, MAX_INDEX, VERSION

# what the model keeps of each row and page has to fit into memory, 4 GB for the most pages
MAX_ROWS = 1 << 20
MAX_PAGES = 1 << 26
BYTE_UNIT = 16  # trace v1: sizes of byte sources are multiples of it
DEFAULT_COSTS = CostModel()
DEFAULT_SOURCES = (Source(name="k", bytes_per_slot=32, hashed_bytes=32),)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimConfig:
    """One modelled server: its pool, its batching rules, and how fast it is.

    The defaults hold 400,000 tokens in pages of 16, room for a Mooncake conversation trace at about 30
    requests at a time.

    Args:
        scheduler: whose rules decide what a forward holds.
        pool_slots: slots of the full pool's buffers, page 0 (padding, never handed out) included.
        page_size: slots a page.
        row_width: page-table columns; the longest request must fit into one row.
        max_running_requests: requests that have a row at the same time.
        chunk_tokens: SGLang's chunked prefill size: a prompt that passes what is left of it is cut, and goes on in
            later forwards. None: prompts are never cut.
        max_prefill_tokens: once the prompts of a forward have used this up, no further one joins. It cuts nothing:
            the last prompt that joins may go far beyond, as in SGLang.
        prefill_max_requests: prompts in one forward; None: any number.
        policy: order of the waiting requests: first come first served, longest output first, or longest cached
            prefix first.
        priorities: whether `Request.priority` counts before that order, smaller numbers first.
        preempt_above: with `priorities`, a request may take the place of running ones whose priority number is
            greater by more than this; None: never.
        retraction: who gives its place up first when the pool is full: the request with the least output, or the
            one with the greatest priority number.
        prefix_cache: whether finished and half-finished prompts are kept in a radix tree.
        mixed_chunk: whether running decodes ride in a prefill's forward, inside both of its budgets.
        conservativeness: how much of the outstanding output of running requests is held back when others are
            admitted: 0.7 of it times this at first, then less with every decode step, and afresh after a retraction.
        max_new_tokens: output that a client asks for at most, which is what a server plans with; a request that has
            more output than this asked for what it got. None: every client knows how much it will get.
        window, window_slots: sliding window in tokens, and slots of the window pool; 0: no window layers.
        draft_tokens: tokens that a speculative verify writes for each request, the last sampled one
            included; 0: plain decode.
        accept_percent: chance of each draft token to be kept.
        graph_lanes: batch sizes for which decode graphs were captured; batches are padded to the next one.
        max_num_batched_tokens, max_num_seqs: tokens of a forward and requests that run at the same time, for
            `scheduler` vllm, which looks at neither `max_running_requests` nor the prefill budgets.
        costs: how long a forward takes.
        sweep_interval: forwards between `sweep` events; 0: none.
        sources, capacities: as in the header of trace v1.
        map_pages: map whole pages when they are allocated and leave `slots` out of forwards, in place of
            `slots` in every forward.
        publish_tokens, expect_tokens: whether `publish` and `forward` repeat what `truth` has said.
        max_steps: stop after so many forwards and cancel what is still there.
        seed: token ids depend on it.

    Raises: UsageError for values that don't fit together.
    """

    scheduler: Literal["sglang", "vllm"] = "sglang"
    pool_slots: int = 400_016
    page_size: int = 16
    row_width: int = 131_072
    max_running_requests: int = 64
    chunk_tokens: int | None = 8192
    max_prefill_tokens: int = 16_384
    prefill_max_requests: int | None = None
    policy: Literal["fcfs", "lof", "lpm"] = "fcfs"
    priorities: bool = False
    retraction: Literal["length", "priority"] = "length"
    preempt_above: int | None = 10
    prefix_cache: bool = True
    mixed_chunk: bool = False
    conservativeness: float = 1.0
    max_new_tokens: int | None = None
    window: int = 0
    window_slots: int = 0
    draft_tokens: int = 0
    accept_percent: int = 70
    graph_lanes: tuple[int, ...] = ()
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    costs: CostModel = DEFAULT_COSTS
    sweep_interval: int = 0
    sources: tuple[Source, ...] = DEFAULT_SOURCES
    capacities: Capacities | None = None
    map_pages: bool = False
    publish_tokens: bool = False
    expect_tokens: bool = False
    max_steps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_pool("pool", self.pool_slots)
        if self.chunk_tokens is not None and self.chunk_tokens % self.page_size:
            raise UsageError(
                f"a prefill chunk of {self.chunk_tokens:,} tokens is no multiple of the page size "
                f"{self.page_size:,}"
            )
        if self.window:
            self._check_pool("window pool", self.window_slots)
        elif self.window_slots or any(source.group == "swa" for source in self.sources):
            raise UsageError("a window pool or a byte source for it needs a window of at least 1 token")
        if self.priorities and self.policy == "lpm":
            raise UsageError("priorities and the policy `lpm` can't be combined, as in SGLang")
        if self.mixed_chunk and self.draft_tokens:
            raise UsageError("mixed chunks and draft tokens can't be combined, as in SGLang")
        for source in self.sources:
            self._check_source(source)

    @property
    def num_rows(self) -> int:
        """Page-table rows for requests: as many as can run at the same time."""
        return self.max_num_seqs if self.scheduler == "vllm" else self.max_running_requests

    @property
    def step_tokens(self) -> int:
        """Tokens that one decode or verify step writes for a request."""
        return max(1, self.draft_tokens)

    def with_capacities(self, *, chunk_flag: int | None = None) -> SimConfig:
        """These settings with the launch capacities that SGLang 0.5.23's canary would give this server.

        Args:
            chunk_flag: `--chunked-prefill-size` as it was given, where that is 0: the model knows chunks or none,
                the capacity takes 0 for a limit. None: follows `chunk_tokens`.
        """
        chunk = chunk_flag if chunk_flag is not None else self.chunk_tokens or -1
        lanes = formula.write_requests(
            graph_batch=max(self.graph_lanes, default=0), running=self.max_running_requests
        )
        entries = formula.write_entries(
            write_req=lanes, draft_tokens=self.step_tokens, max_prefill=self.max_prefill_tokens, chunk=chunk
        )
        capacities = Capacities(
            write_req_capacity=lanes,
            write_entry_capacity=entries,
            verify_capacity=formula.verify_entries(self.pool_slots - self.page_size),
        )
        return replace(self, capacities=capacities)

    def header(self) -> Header:
        """The trace header of a run with these settings."""
        groups = [Group(kind="full")]
        if self.window:
            groups.append(Group(kind="swa", window=self.window, slots=self.window_slots))
        return Header(
            format=FORMAT,
            version=VERSION,
            pool=Pool(
                slots=self.pool_slots,
                page_size=self.page_size,
                rows=self.num_rows + 1,
                row_width=self.row_width,
            ),
            groups=groups,
            sources=list(self.sources),
            capacities=self.capacities,
            producer={"name": "kvcanary"},
        )

    def _check_ranges(self) -> None:
        at_least = {
            "pool_slots": 1,
            "page_size": 1,
            "row_width": 1,
            "max_running_requests": 1,
            "max_prefill_tokens": 1,
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "window": 0,
            "window_slots": 0,
            "draft_tokens": 0,
            "sweep_interval": 0,
            "accept_percent": 0,
            "seed": 0,
        }
        for name, least in at_least.items():
            most = MAX_ROWS if name in ("max_running_requests", "max_num_seqs") else MAX_INDEX
            _check_range(name, getattr(self, name), least, most)
        for name in ("chunk_tokens", "prefill_max_requests", "max_new_tokens", "max_steps"):
            if getattr(self, name) is not None:
                _check_range(name, getattr(self, name), 1)
        for lanes in self.graph_lanes:
            _check_range("graph_lanes", lanes, 1)
        if self.preempt_above is not None:
            _check_range("preempt_above", self.preempt_above, 0)
        if self.accept_percent > 100:
            raise UsageError(f"`accept_percent` is {self.accept_percent}, at most 100 is possible")
        if not 0 <= self.conservativeness < math.inf:
            raise UsageError(f"`conservativeness` is {self.conservativeness}, a number from 0 on is needed")

    def _check_pool(self, what: str, slots: int) -> None:
        if slots % self.page_size:
            raise UsageError(
                f"the page size {self.page_size:,} does not divide the {what} of {slots:,} slots"
            )
        if slots < 2 * self.page_size:
            raise UsageError(
                f"the {what} has {slots:,} slots, at least 2 pages of {self.page_size:,} are needed: "
                "page 0 is padding"
            )
        if slots // self.page_size > MAX_PAGES:
            raise UsageError(
                f"the {what} has {slots // self.page_size:,} pages of {self.page_size:,}, the scheduler model "
                f"has room for {MAX_PAGES:,}"
            )

    def _check_source(self, source: Source) -> None:
        sizes = (source.bytes_per_slot, source.hashed_bytes)
        if any(size % BYTE_UNIT for size in sizes) or source.hashed_bytes > source.bytes_per_slot:
            raise UsageError(
                f"byte source `{source.name}` hashes {source.hashed_bytes} of {source.bytes_per_slot} bytes "
                f"a slot, multiples of {BYTE_UNIT} are needed and no more hashed than there are"
            )


def _check_range(name: str, value: int, least: int, most: int = MAX_INDEX) -> None:
    if isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"`{name}` is {value:,}, a number from {least:,} to {most:,} is needed")
